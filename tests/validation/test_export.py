"""Exported code on the real libraries: what it keeps, what it runs again, and its measured peak."""

from __future__ import annotations

import collections
import json
from dataclasses import replace

import pytest
from tiers import slow_where

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.measure import StorageTracker  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from small_models import clear_gradients  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import schedsim  # noqa: E402
from schedsim import Schedule, simulate  # noqa: E402
from schedsim.export import export  # noqa: E402
from schedsim.workloads import WorkloadOptions, build_workload  # noqa: E402


def loaded(text: str) -> dict:
    """The names that an exported module defines."""
    names: dict = {}
    exec(compile(text, "exported.py", "exec"), names)
    return names


class Calls(TorchDispatchMode):
    """Counts calls by op."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.__name__.split(".")[0]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("share", slow_where([0.45, 0.6, 0.8, 1.0], lambda share: share < 0.8))
def test_the_peak_of_exported_segments_is_the_simulated_one(share):
    """Within 1 %, by the storage meter; gradients equal to the bit."""
    model, inputs, mean_squared_error = build_model("mlp", layers=8, hidden=128, batch=8192)

    def loss(output):
        # The scalar of `mse_loss` is in a storage of the size of its input, which the loop holds.
        return mean_squared_error(output).clone()

    captured = capture_chain(model, inputs, loss, rounds=0)
    chain = captured.chain
    # Times of their own, so that what is exported is the same on every machine.
    stages = tuple(replace(s, forward_s=1.0, backward_s=2.0) for s in chain.stages)
    chain = replace(chain, stages=stages)
    budget = simulate(chain, Schedule.store_all(chain)).peak_bytes
    least = min(point.budget_bytes for point in schedsim.pareto(chain).points)
    plan = schedsim.plan(chain, int(least + share * (budget - least)))
    exported = export(chain, plan, "torch")
    forward = loaded(exported.text)["forward"]
    blocks = list(model)
    assert len(blocks) == chain.num_stages

    def step():
        loss(forward(blocks, inputs[0]), *inputs[1:]).backward()

    clear_gradients(model)
    loss(model(inputs[0]), *inputs[1:]).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    clear_gradients(model)
    with StorageTracker() as tracker:
        gradients = [p.grad for p in model.parameters()]
        tracker.add([captured.static_tensors, gradients, inputs], "static")
        step()
    assert exported.says.startswith("0 of") == (share == 1)
    assert tracker.peak.total_bytes == pytest.approx(exported.peak_bytes, rel=0.01)
    assert all(map(torch.equal, plain, [p.grad for p in model.parameters()]))


class Layer(nn.Module):
    """A layer whose ops are those of the formula: eager attention, GELU, dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        length, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(length, 3, self.heads, -1).permute(1, 2, 0, 3)
        p = F.dropout(torch.bmm(q, k.transpose(1, 2)).softmax(-1), 0.1)
        y = self.proj(torch.bmm(p, v).transpose(0, 1).reshape(length, width))
        x = x + F.dropout(y, 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), 0.1)


@pytest.mark.parametrize("share", [0.8, 0.88, 0.95])
def test_selective_checkpointing_runs_again_what_the_policy_says(share):
    """Products and attention of the real layers repeat as often as in the simulation."""
    options = WorkloadOptions(preset="gpt2", layers=3, batch=8, granularity="op", seq=128)
    graph = build_workload(options).workload
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    plan = schedsim.plan(graph, int(share * peak), effort=0.3)
    exported = export(graph, plan, "torch-sac")
    names = loaded(exported.text)
    torch.manual_seed(0)
    layers = nn.ModuleList(Layer(64, 4) for _ in range(3))
    x = torch.randn(32, 64, requires_grad=True)

    def step(run):
        torch.manual_seed(1)
        y = x
        for i, layer in enumerate(layers):
            y = run(i, layer, y)
        with Calls() as calls:
            y.square().sum().backward()
        found = [p.grad.clone() for p in layers.parameters()]
        layers.zero_grad(set_to_none=True)
        return calls.counts, found

    plain, expected = step(lambda _, layer, y: layer(y))
    again, found = step(names["run_layer"])
    assert all(map(torch.equal, expected, found))
    repeats = collections.Counter(
        name.rsplit(".", 1)[-1] for name in exported.schedule.names if name.startswith("layer")
    )
    for kinds, op in ((("qkv", "proj", "up", "down"), "addmm"), (("scores", "context"), "bmm")):
        wanted = sum(repeats[kind] - len(layers) for kind in kinds)
        assert again[op] - plain[op] == wanted, op


def test_the_solver_saves_what_the_plan_keeps():
    """torch.compile asks it, and the backward runs again the products that the plan repeats."""
    import torch._functorch.config as config

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
    x, y = torch.randn(512, 64), torch.randn(512, 64)
    graph = capture(model, (x, y), F.mse_loss).graph
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    exported = export(graph, schedsim.plan(graph, int(0.8 * peak), effort=0.3), "torch-compile")
    solver = loaded(exported.text)["Solver"]()
    asked = []

    class Noted(type(solver)):
        def __call__(self, *arguments):
            answer = super().__call__(*arguments)
            asked.append((len(arguments[-1]), answer))
            return answer

    def step(compiled):
        model.zero_grad(set_to_none=True)
        F.mse_loss(compiled(x), y).backward()
        return [p.grad.clone() for p in model.parameters()]

    plain = step(model)
    with config.patch(activation_memory_budget=0.5, activation_memory_budget_solver=Noted()):
        torch._dynamo.reset()
        found = step(torch.compile(model, backend="aot_eager_decomp_partition"))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, found, strict=True))
    assert asked
    for count, (saved, recomputed) in asked:
        assert sorted([*saved, *recomputed]) == list(range(count))
    assert exported.text.count("True") > 0


def test_transformers_checkpoints_the_layers_chosen():
    """The attribute is set on those layers alone, and the gradients stay the same."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    chain = build_workload(WorkloadOptions(preset="gpt2", layers=4, batch=8)).workload
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    exported = export(chain, schedsim.plan(chain, int(0.85 * peak)), "transformers")
    names = loaded(exported.text)
    settings = {"n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16}
    config = transformers.GPT2Config(**settings, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(0, 64, (2, 16))

    def step():
        model.zero_grad(set_to_none=True)
        model(tokens, labels=tokens).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    model.train()
    plain = step()
    names["enable"](model)
    marked = [layer.gradient_checkpointing for layer in model.transformer.h]
    assert marked == [i in names["CHECKPOINTED"] for i in range(4)]
    assert 0 < sum(marked) < 4
    with Calls() as calls:
        found = step()
    assert all(map(torch.equal, plain, found))
    assert calls.counts["native_layer_norm"] == 2 * 4 + 1 + 2 * sum(marked)


def test_jax_saves_the_names():
    """The data are the arguments of its policy, which then recomputes what has other names."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from jax.ad_checkpoint import checkpoint_name

    options = WorkloadOptions(preset="gpt2", layers=3, batch=8, granularity="op")
    graph = build_workload(options).workload
    peak = simulate(graph, Schedule.store_all(graph)).peak_bytes
    exported = export(graph, schedsim.plan(graph, int(0.8 * peak), effort=0.3), "jax")
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        **json.loads(exported.text)["policy"]
    )
    saved = json.loads(exported.text)["policy"]["names_which_can_be_saved"]
    kinds = ["attention.qkv", "attention.proj", "mlp.up", "mlp.down"]

    def layer(x):
        for kind in kinds:
            x = checkpoint_name(jax.numpy.sin(x), kind)
        return x.sum()

    x = jax.numpy.arange(4.0)
    plain = jax.grad(layer)(x)
    assert jax.numpy.array_equal(plain, jax.grad(jax.checkpoint(layer, policy=policy))(x))
    text = str(jax.make_jaxpr(jax.grad(jax.checkpoint(layer, policy=policy)))(x))
    # Each sine runs in the forward; those that are not saved run again in the backward.
    again = text.count(" sin ") - len(kinds)
    assert again <= len(kinds) - len(set(saved) & set(kinds))


def test_torchtitan_wraps_the_layers_chosen():
    """Its own policy class, subclassed: those layers alone run again, and gradients stay."""
    pytest.importorskip("torchtitan.distributed", reason="torchtitan is not installed")
    chain = build_workload(WorkloadOptions(preset="gpt2", layers=4, batch=8)).workload
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    names = loaded(export(chain, schedsim.plan(chain, int(0.85 * peak)), "torchtitan").text)
    chosen = names["CHECKPOINTED"]
    assert 0 < len(chosen) < 4

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            blocks = {str(i): torch.nn.Sequential(torch.nn.Linear(8, 8)) for i in range(4)}
            self.layers = torch.nn.ModuleDict(blocks)

        def forward(self, x):
            for block in self.layers.values():
                x = torch.nn.functional.gelu(block(x))
            return x.sum()

    torch.manual_seed(0)
    model, x = Model(), torch.randn(3, 8)
    model(x).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    names["PlannedAC"].Config().build().apply(model)
    wrapped = [hasattr(block, "_checkpoint_wrapped_module") for block in model.layers.values()]
    assert wrapped == [i in chosen for i in range(4)]
    with Calls() as calls:
        model(x).backward()
    assert all(map(torch.equal, plain, [p.grad for p in model.parameters()]))
    assert calls.counts["addmm"] == 4 + len(chosen)


def linked(chain, share, **options):
    """A plan of a chain over a link."""
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    return schedsim.plan(chain, int(share * peak), link="pcie4", effort=0.2, **options)


def test_segments_whose_inputs_the_host_holds(monkeypatch):
    """Those alone are packed by ``save_on_cpu``, in order, and gradients are equal to the bit."""
    model, inputs, loss = build_model("mlp", layers=8, hidden=64, batch=512)
    chain = replace(capture_chain(model, inputs, loss, rounds=0).chain, static_bytes=0)
    stages = tuple(replace(s, forward_s=1e-4, backward_s=2e-4) for s in chain.stages)
    chain = replace(chain, stages=stages)
    peak = simulate(chain, Schedule.store_all(chain)).peak_bytes
    for share in (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8):
        plan = schedsim.api.try_plan(chain, int(share * peak), link="pcie4", effort=0.2)
        if plan.feasible and plan.setting.copies_anything(plan.schedule):
            exported = export(chain, plan, "torch")
            if exported.host_bytes:
                break
    names = loaded(exported.text)
    packed = []
    real = names["save_on_cpu"]

    class Noted(real):
        def __init__(self, pin_memory=False):
            super().__init__(pin_memory=pin_memory)
            pack = self.pack_hook

            def noted(tensor):
                if tensor.numel():  # torch 2.11 saves tensors without entries
                    packed.append(tensor.numel() * tensor.element_size())
                return pack(tensor)

            self.pack_hook = noted

    monkeypatch.setitem(names, "save_on_cpu", Noted)
    clear_gradients(model)
    loss(model(inputs[0]), *inputs[1:]).backward()
    plain = [p.grad.clone() for p in model.parameters()]
    clear_gradients(model)
    loss(names["forward"](list(model), inputs[0]), *inputs[1:]).backward()
    assert all(map(torch.equal, plain, [p.grad for p in model.parameters()]))
    assert names["INPUTS_ON_HOST"]
    assert packed == [chain.stages[i - 1].output_bytes for i in names["INPUTS_ON_HOST"]]
    assert sum(packed) == exported.host_bytes


def test_transformers_holds_the_inputs_of_layers_on_the_host(monkeypatch):
    """Its own ``offload=`` where there is an accelerator; without one the model trains alike."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    chain = build_workload(WorkloadOptions(preset="gpt2", layers=4, batch=8)).workload
    plan = linked(chain, 0.85)
    # All four layers and their inputs: the leanest there is.
    object.__setattr__(plan, "budget_bytes", 1)
    names = loaded(export(chain, plan, "transformers").text)
    assert names["OFFLOAD"]
    settings = {"n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 64, "n_positions": 16}
    config = transformers.GPT2Config(**settings, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(0, 64, (2, 16))

    def step():
        model.zero_grad(set_to_none=True)
        model(tokens, labels=tokens).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    model.train()
    plain = step()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    names["enable"](model)
    assert all(map(torch.equal, plain, step()))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    names["enable"](model)
    code = model.transformer.h[0]._gradient_checkpointing_func.func.__code__
    assert "save_on_cpu" in code.co_names


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.8, 0.9])
def test_what_selective_checkpointing_holds_on_the_host_is_copied_and_not_run_again(share):
    """A copy out for every output that the host holds; products repeat as in the simulation."""
    options = WorkloadOptions(preset="gpt2", layers=3, batch=8, granularity="op", seq=128)
    graph = build_workload(options).workload
    exported = export(graph, linked(graph, share), "torch-sac")
    if not exported.host_bytes:
        from schedsim.export.save_sets import as_choice, find_layers
        from schedsim.export.to_torch_sac import render

        layers = find_layers(graph, "torch-sac")
        held = {"attention.qkv", "mlp.up"}
        # The first layer keeps less: a policy of its own.
        early = 1, {"attention.qkv"}
        choice = as_choice(graph, layers, {*held, "attention.proj"}, 2, held, early)
        names = loaded(render(graph, linked(graph, share), choice, 1))
        schedule, wanted_copies = choice.schedule, 1 + 2
    else:
        names, schedule = loaded(exported.text), exported.schedule
        wanted_copies = sum(
            places.count("host")
            for number in names["LAYERS"]
            if number is not None
            for places in names["SAVE"][number].values()
        )
    torch.manual_seed(0)
    layers = nn.ModuleList(Layer(64, 4) for _ in range(3))
    x = torch.randn(32, 64, requires_grad=True)
    copied = []
    original = names["to_host"]
    names["to_host"] = lambda t: (copied.append(t.shape), original(t))[1]

    def step(run):
        torch.manual_seed(1)
        y = x
        for i, layer in enumerate(layers):
            y = run(i, layer, y)
        with Calls() as calls:
            y.square().sum().backward()
        found = [p.grad.clone() for p in layers.parameters()]
        layers.zero_grad(set_to_none=True)
        return calls.counts, found

    plain, expected = step(lambda _, layer, y: layer(y))
    again, found = step(names["run_layer"])
    assert all(map(torch.equal, expected, found))
    assert len(copied) == wanted_copies
    repeats = collections.Counter(
        name.rsplit(".", 1)[-1] for name in schedule.names if name.startswith("layer")
    )
    for kinds, op in ((("qkv", "proj", "up", "down"), "addmm"), (("scores", "context"), "bmm")):
        wanted = sum(repeats[kind] - len(layers) for kind in kinds)
        assert again[op] - plain[op] == wanted, op


def test_torchs_own_policy_for_the_host_still_copies_nothing():
    """``MUST_CPU_OFFLOAD`` recomputes: the day that it copies, the export can use it."""
    from functools import partial

    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_CPU_OFFLOAD

    x = torch.randn(4, 4, requires_grad=True)
    weight = torch.randn(4, 4)
    y = checkpoint(
        lambda t: torch.mm(t, weight).sin().sum(),
        x,
        use_reentrant=False,
        context_fn=partial(create_selective_checkpoint_contexts, policy),
    )
    with Calls() as calls:
        y.backward()
    assert calls.counts["mm"] == 2  # again, and that of the gradient


def test_jax_offloads_the_names():
    """Under its policy the residual of a layer is a copy to pinned host memory."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from jax.ad_checkpoint import checkpoint_name

    from schedsim.export.save_sets import INPUT
    from schedsim.export.segments import as_choice, held_inputs, singles
    from schedsim.export.to_jax import render

    chain = build_workload(WorkloadOptions(preset="gpt2", layers=4, batch=8)).workload
    segments = singles(range(1, 5))
    choice = as_choice(chain, segments, held_inputs(segments))
    document = json.loads(render(chain, linked(chain, 0.85), choice, 1))
    assert document["policy"]["names_which_can_be_offloaded"] == [INPUT]
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(**document["policy"])

    def segment(x):
        return jax.numpy.sin(jax.numpy.sin(checkpoint_name(x * 2.0, INPUT))).sum()

    x = jax.numpy.arange(4.0)
    text = str(jax.make_jaxpr(jax.grad(jax.checkpoint(segment, policy=policy)))(x))
    assert "pinned_host" in text or "<host>" in text
    found = jax.grad(jax.checkpoint(segment, policy=policy))(x)
    assert jax.numpy.array_equal(jax.grad(segment)(x), found)


def test_megatron_takes_the_modules_whose_inputs_go_to_the_host():
    """Every set of them that is written, and none that it refuses."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core.transformer.transformer_config import TransformerConfig

    from schedsim.export.to_megatron import OFFLOADED, _sets_on_host

    sizes = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
    for modules in _sets_on_host(list(OFFLOADED)):
        TransformerConfig(
            **sizes, fine_grained_activation_offloading=True, offload_modules=list(modules)
        )
    with pytest.raises((ValueError, AssertionError)):
        TransformerConfig(
            **sizes, fine_grained_activation_offloading=True, offload_modules=["attn_proj"]
        )


def test_trl_takes_the_arguments(tmp_path):
    """Its configuration has them, and so has the Trainer of transformers below it."""
    pytest.importorskip("trl", reason="trl is not installed")
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    from trl import SFTConfig

    chain = build_workload(WorkloadOptions(preset="gpt2", layers=4, batch=8)).workload
    plan = linked(chain, 0.85)
    object.__setattr__(plan, "budget_bytes", 1)
    for target, budget in (("trl", plan), ("axolotl", plan), ("trl", linked(chain, 1.0))):
        arguments = yaml.safe_load(export(chain, budget, target).text)
        config = SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **arguments)
        assert config.activation_checkpointing == arguments["gradient_checkpointing"]
        settings = arguments.get("gradient_checkpointing_kwargs")
        assert config.activation_checkpointing_kwargs == settings
    assert settings is None


def test_megatron_knows_the_modules():
    """Every value that is written is one that its configuration takes."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core.transformer.transformer_config import TransformerConfig

    from schedsim.export.to_megatron import MODULES

    sizes = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
    for modules in (list(MODULES), *([one] for one in MODULES)):
        TransformerConfig(**sizes, recompute_granularity="selective", recompute_modules=modules)
    with pytest.raises((ValueError, AssertionError)):
        TransformerConfig(**sizes, recompute_granularity="selective", recompute_modules=["ffn"])
    TransformerConfig(
        **sizes, recompute_granularity="full", recompute_method="block", recompute_num_layers=1
    )


def small_plans(*targets):
    """What the targets are given for a chain: everything kept, every layer, layers on the host."""
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    chain = build_workload(WorkloadOptions(preset="gpt2", layers=4, batch=8)).workload
    for target in targets:
        for share in (0.6, 1.0):
            yield yaml.safe_load(export(chain, linked(chain, share), target).text)


def test_axolotl_takes_the_arguments():
    """Its schema gives its trainer what was written."""
    schema = pytest.importorskip(
        "axolotl.utils.schemas.config", reason="axolotl is not installed", exc_type=ImportError
    )
    needed = {
        "base_model": "gpt2",
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3,
        "datasets": [{"path": "x", "type": "alpaca"}],
    }
    for written in small_plans("axolotl"):
        config = schema.AxolotlInputConfig(**needed, **written)
        assert config.gradient_checkpointing == written["gradient_checkpointing"]
        kwargs = written.get("gradient_checkpointing_kwargs")
        assert config.gradient_checkpointing_kwargs == kwargs


def test_verl_takes_the_switches():
    """In the configurations of its PPO and SFT trainers, composed as it composes them."""
    verl = pytest.importorskip("verl", reason="verl is not installed", exc_type=ImportError)
    hydra = pytest.importorskip("hydra", reason="hydra is not installed")
    from pathlib import Path

    folder = Path(verl.__file__).parent / "trainer" / "config"
    for written in small_plans("verl"):
        model = written["actor_rollout_ref"]["model"]
        with hydra.initialize_config_dir(str(folder), version_base=None):
            for name, where in (("ppo_trainer", "actor_rollout_ref."), ("sft_trainer_engine", "")):
                given = [f"{where}model.{key}={str(on).lower()}" for key, on in model.items()]
                composed = hydra.compose(name, overrides=given)
                found = composed.actor_rollout_ref.model if where else composed.model
                assert {key: found[key] for key in model} == model


def test_maxtext_takes_the_policy():
    """Its reader of configurations sorts the names by their place."""
    pyconfig = pytest.importorskip(
        "maxtext.configs.pyconfig", reason="MaxText is not installed", exc_type=ImportError
    )
    yaml = pytest.importorskip("yaml", reason="pyyaml is not installed")
    from pathlib import Path

    base = str(Path(pyconfig.__file__).with_name("base.yml"))
    kept = ["run_name=a", "enable_checkpointing=false", "dataset_type=synthetic", "hardware=cpu"]
    kept.append("skip_jax_distributed_system=true")
    options = WorkloadOptions(preset="gpt2", layers=2, granularity="op")
    graph = build_workload(options).workload
    for share in (0.85, 1.0):
        written = yaml.safe_load(export(graph, linked(graph, share), "maxtext").text)
        given = [f"{key}={value}" for key, value in written.items()]
        config = pyconfig.initialize(["train", base, *kept, *given])
        assert config.remat_policy == written.pop("remat_policy") == "custom"
        for place, names in (
            ("device", config.tensors_on_device),
            ("offload", config.tensors_to_offload),
        ):
            assert sorted(names) == sorted(key for key, at in written.items() if at == place)
