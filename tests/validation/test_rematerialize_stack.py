"""Rematerialized modules with the rest of a training stack."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.torch_private.tested_versions import minor_version  # noqa: E402
from tiers import slow_where  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import schedsim  # noqa: E402

LOSS = nn.functional.mse_loss
LEVELS = ("op", "block")


def a_model(num=4):
    """A line of small blocks."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(num)))


def some_data(num=256):
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(num, 16, generator=generator) for _ in range(2)]


def made(model, inputs, level, **options):
    """A module at a tight budget."""
    options = {"budget": "85%", "effort": 0.2, **options}
    return schedsim.rematerialize(model, tuple(inputs), loss=LOSS, level=level, **options)


@pytest.mark.parametrize("level", LEVELS)
def test_autocast_and_grad_scaler(level):
    """Each is the plain step to the bit; the plan is made in the same autocast."""
    model, (x, target) = a_model(), some_data()
    found = []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.autocast("cpu", torch.bfloat16):
        module = made(model, (x, target), level)
    for step in (lambda: LOSS(model(x), target), lambda: module(x, target)):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = step()
        scaler.scale(loss).backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
    assert all(map(torch.equal, *found))
    assert len(module.plans) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_whole_loop_is_the_plain_one_to_the_bit(level):
    """Data loader, two accumulated steps, clipping, checkpoints both ways."""
    data = TensorDataset(*some_data(512))
    weights = []
    for scheduled in (False, True):
        model = a_model()
        optimizer = torch.optim.AdamW(model.parameters())
        first = next(iter(DataLoader(data, batch_size=64)))
        run = lambda x, target, model=model: LOSS(model(x), target)  # noqa: E731
        if scheduled:
            run = made(model, first, level, optimizer=optimizer, keep_gradients=True)
        for number, (x, target) in enumerate(DataLoader(data, batch_size=64)):
            (run(x, target) / 2).backward()
            if number % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
        weights.append(list(model.state_dict().values()))
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize("level", LEVELS)
def test_accumulated_gradients_are_in_the_plan(level):
    """The second backward meets gradients that are there already, and stays within the plan."""
    model, inputs = a_model(), some_data()
    module = made(model, inputs, level, keep_gradients=True)
    watcher = schedsim.watch(module)
    for _ in range(2):
        with watcher:
            module(*inputs).backward()
    assert max(watcher.measured_bytes) <= module.plan.peak_bytes


def _ddp(rank, level):
    x, target = some_data()
    half = slice(128 * rank, 128 * (rank + 1))
    model, plain = a_model(), a_model()
    module = made(model, (x[half], target[half]), level)
    parallel = nn.parallel.DistributedDataParallel(module)
    for _ in range(2):
        model.zero_grad()
        parallel(x[half], target[half]).backward()
    LOSS(plain(x), target).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("level", slow_where(LEVELS, lambda level: level == "op"))
def test_distributed_data_parallel_averages_the_gradients(level):
    """Each rank's gradients are those of the whole batch."""
    run_ranks(_ddp, 2, level)


def _fsdp(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    x, target = some_data()
    half = slice(128 * rank, 128 * (rank + 1))
    model, plain = a_model(), a_model()
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    module = made(model, (x[half], target[half]), "auto")
    assert module.level == "block"
    for _ in range(2):
        model.zero_grad()
        module(x[half], target[half]).backward()
    assert sum(module.run_counts.values()) == len(module.plan.schedule.names)
    LOSS(plain(x), target).backward()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad.full_tensor(), other.grad)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::schedsim.validation.whole_step.step_capture.BlockLevelWarning")
def test_fully_sharded_blocks_run_at_the_block_level():
    """The op level needs whole parameters, and says so; blocks gather theirs when they run."""
    run_ranks(_fsdp, 2)


@pytest.mark.parametrize("level", LEVELS)
def test_a_compiler_steps_over_the_module(level):
    model, inputs = a_model(), some_data()
    module = made(model, inputs, level)
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compile(module, backend=backend)(*inputs).backward()
    found = [p.grad for p in model.parameters()]
    model.zero_grad()
    LOSS(model(inputs[0]), inputs[1]).backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(found, model.parameters(), strict=True))
    assert not graphs
    assert len(module.plans) == 1


class Block(nn.Module):
    """No Sequential, which would be taken apart into its items."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        """Two ops."""
        return torch.tanh(self.linear(x))


@pytest.mark.slow
def test_compiled_blocks_run_in_a_schedule_of_blocks():
    """Results are the model's; before torch 2.14 compiled code stands aside in the step."""
    inputs = some_data()
    ran = []

    def backend(graph, _):
        def run(*values):
            ran.append(1)
            return graph.forward(*values)

        return run

    model = nn.Sequential(*(Block() for _ in range(4)))
    for block in model:
        block.compile(backend=backend)
    module = made(model, inputs, "block", budget="95%")
    ran.clear()
    module(*inputs).backward()
    assert bool(ran) == (minor_version(torch.__version__) >= (2, 14))
    found = [p.grad for p in model.parameters()]
    model.zero_grad()
    LOSS(model(inputs[0]), inputs[1]).backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(found, model.parameters(), strict=True))


@pytest.mark.slow
def test_the_trainer_of_transformers_trains_through_it(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    ids = torch.randint(50, (8, 16), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in ids]
    weights = []
    for scheduled in (False, True):
        model = a_language_model(transformers)
        step = {"input_ids": ids[:4], "labels": ids[:4]}
        trained = schedsim.rematerialize(model, step, "95%", level="block") if scheduled else model
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=2,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
        )
        transformers.Trainer(trained, arguments, train_dataset=data).train()
        weights.append(list(model.state_dict().values()))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*weights, strict=True))


def a_language_model(transformers):
    """A small one, from a configuration."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=32, n_layer=3, n_head=2, use_cache=False
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_a_model_of_transformers_gives_an_output_with_its_loss(level):
    """What the Trainer relies on: keywords, the output's form, the signature, the config."""
    import inspect

    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = a_language_model(transformers)
    ids = torch.randint(50, (4, 16))
    step = {"input_ids": ids, "labels": ids}
    module = schedsim.rematerialize(model, step, "95%", level=level, effort=0.3)
    out = module(**step)
    out["loss"].backward()
    found = [p.grad for p in model.parameters()]
    model.zero_grad()
    plain = model(**step).loss
    plain.backward()
    assert torch.equal(out.loss, plain)
    assert all(torch.equal(a, p.grad) for a, p in zip(found, model.parameters(), strict=True))
    assert "labels" in inspect.signature(module.forward).parameters
    assert module.config is model.config
    assert module.eval()(input_ids=ids).logits.shape == (4, 16, 50)
