"""Scheduled models in ordinary training: optimizers, autocast, DDP, foreign models."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL, outcome  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule, UnsupportedError, simulate  # noqa: E402


def recompute_everything(chain):
    """Every stage input stored, every stage replayed."""
    num = chain.num_stages
    names = [f"F{i}" for i in range(num)] + ["loss"]
    for i in range(num - 1, -1, -1):
        names += [f"F{i}", f"B{i}"]
    return Schedule.from_names(names)


def test_three_steps_of_an_optimizer_are_those_of_the_plain_model():
    """AdamW on GPT-2 with dropout, and two micro-batches accumulated a step.

    Not tied: a shared weight gets its gradients one by one, where autograd adds them up first,
    which differs in the last bit once there is something to add to.
    """
    name, options = SMALL["gpt2"]
    options = {**options, "tied": False}
    weights = []
    for scheduled in (False, True):
        model, inputs, loss = build_model(name, **options)
        step = lambda model=model, inputs=inputs, loss=loss: loss(model(*inputs))  # noqa: E731
        if scheduled:
            captured = capture_chain(model, inputs, loss, rounds=0)
            module = captured.module(recompute_everything(captured.chain))
            step = lambda module=module, inputs=inputs: module(*inputs)  # noqa: E731
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(0)
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(2):
                (step() / 2).backward()
            optimizer.step()
        weights.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


def test_statistics_move_once():
    """One step counts one batch, however often a block is replayed."""
    name, options = SMALL["resnet"]
    model, inputs, loss = build_model(name, **options)
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    module(*inputs).backward()
    counts = [b.item() for n, b in model.named_buffers() if n.endswith("num_batches_tracked")]
    assert set(counts) == {1}


class Counter(nn.Module):
    """Scales by how often it has been called: a buffer that the forward reads and changes."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        """Scaled by the calls so far, this one included."""
        self.calls = self.calls + 1
        return self.linear(x) * self.calls


def test_other_buffers_are_replayed_too():
    """A repeat sees the buffer as the first run saw it, and leaves it as it found it."""
    model = nn.Sequential(*(Counter() for _ in range(3)))
    inputs = (torch.randn(2, 4),)
    captured = capture_chain(model, inputs, lambda y: y.square().mean(), rounds=0)
    plain = outcome(model, lambda: model(*inputs).square().mean())
    module = captured.module(recompute_everything(captured.chain))
    assert all(map(torch.equal, plain, outcome(model, lambda: module(*inputs))))


def test_autocast_is_kept_for_the_repeats():
    """The backward runs outside the context; its repeats cast as the first runs did."""
    name, options = SMALL["gpt2"]
    model, inputs, loss = build_model(name, **{**options, "tied": False})
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))

    def under_autocast(step):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return step()

    plain = outcome(model, lambda: under_autocast(lambda: loss(model(*inputs))))
    found = outcome(model, lambda: under_autocast(lambda: module(*inputs)))
    assert all(map(torch.equal, plain, found))


def test_frozen_blocks_need_no_backward():
    """The first blocks frozen, as in fine-tuning."""
    name, options = SMALL["gpt2"]
    model, inputs, loss = build_model(name, **{**options, "tied": False})
    for block in model[:3]:
        block.requires_grad_(False)
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    torch.manual_seed(0)
    loss(model(*inputs)).backward()
    plain = [p.grad for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    torch.manual_seed(0)
    module(*inputs).backward()
    found = [p.grad for p in model.parameters() if p.requires_grad]
    assert all(map(torch.equal, plain, found))
    assert all(p.grad is None for block in model[:3] for p in block.parameters())


def test_without_gradients_the_model_is_simply_called():
    """Evaluation costs no replay; a step that is never finished holds nothing back."""
    model, inputs, loss = build_model("mlp", layers=3, hidden=8, batch=4)
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    with torch.no_grad():
        assert torch.equal(module(*inputs), loss(model(*inputs)))
    abandoned = module(*inputs)
    del abandoned
    value = module(*inputs)
    value.backward(retain_graph=True)
    with pytest.raises(Exception, match="run backward already"):
        value.backward()


def test_a_step_that_is_never_finished_frees_what_it_kept():
    """No reference cycle through autograd keeps the bundles."""
    from schedsim.validation.measure import StorageTracker

    model, inputs, loss = build_model("mlp", layers=3, hidden=64, batch=64)
    captured = capture_chain(model, inputs, loss, rounds=0)
    module = captured.module(Schedule.store_all(captured.chain))
    with StorageTracker() as tracker:
        value = module(*inputs)
        assert tracker.live_bytes > 3 * 64 * 64 * 4
        module.run_counts = {}
        del value
        assert tracker.live_bytes < 1000


class Foreign(nn.Module):
    """A model with its blocks in a list, something before, a side input, something after."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.drop = nn.Dropout(0.2)
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 50)

    def forward(self, ids, scale=1.0):
        """Logits of the mean over the sequence."""
        mask = torch.ones(ids.shape[1], device=ids.device)
        x = self.drop(self.embedding(ids))
        for layer in self.layers:
            x = layer(x, mask=mask, scale=scale)
        return self.head(self.norm(x.mean(1)))


class Layer(nn.Module):
    """One block, with keyword arguments."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, *, mask, scale):
        """Same shape."""
        return x + self.drop(torch.tanh(self.linear(x * mask[:, None]))) * scale


def test_a_foreign_model_is_split_around_its_blocks():
    """What is before and after become stages; keywords and side inputs arrive."""
    torch.manual_seed(0)
    model = Foreign()
    ids = torch.randint(50, (8, 6))
    captured = capture_chain(
        model, (ids,), lambda y: y.square().mean(), kwargs={"scale": 0.5}, rounds=0
    )
    names = [stage.name for stage in captured.chain.stages]
    assert names == ["before", "layers.0", "layers.1", "layers.2", "layers.3", "after"]
    plain = outcome(model, lambda: model(ids, scale=0.5).square().mean())
    module = captured.module(recompute_everything(captured.chain))
    assert all(map(torch.equal, plain, outcome(model, lambda: module(ids, scale=0.5))))
    assert "forward" not in model.layers[0].__dict__


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_models_of_transformers_are_split_and_trained(family):
    """Their own loss, from labels; caches off."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    if family == "gpt2":
        config = transformers.GPT2Config(n_layer=3, n_embd=32, n_head=2, vocab_size=100)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            num_hidden_layers=3,
            hidden_size=32,
            num_attention_heads=2,
            num_key_value_heads=2,
            intermediate_size=64,
            vocab_size=100,
        )
        model = transformers.LlamaForCausalLM(config)
    model.train()
    ids = torch.randint(100, (2, 16))
    keywords = {"input_ids": ids, "labels": ids, "use_cache": False}
    captured = capture_chain(model, keywords, rounds=0)
    assert captured.chain.num_stages == 5
    plain = outcome(model, lambda: model(**keywords).loss)
    module = captured.module(recompute_everything(captured.chain))
    assert all(map(torch.equal, plain, outcome(model, lambda: module(**keywords))))


class Collecting(nn.Module):
    """Uses what passes between its blocks."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        """The sum over all layers' outputs."""
        total = 0
        for layer in self.layers:
            x = layer(x)
            total = total + x
        return total


class Biased(nn.Module):
    """Hands its blocks a second tensor that is trained."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))
        self.layers = nn.ModuleList(nn.Bilinear(4, 4, 4) for _ in range(3))

    def forward(self, x):
        """Each layer sees the bias too."""
        second = (self.bias * 2).expand_as(x)
        for layer in self.layers:
            x = layer(x, second)
        return x


@pytest.mark.parametrize(
    ("model", "says"),
    [(Collecting(), "do not give what the model gives"), (Biased(), "second tensor")],
    ids=["collecting", "biased"],
)
def test_blocks_that_are_not_the_model_are_refused(model, says):
    """Rather than trained wrongly."""
    with pytest.raises(UnsupportedError, match=says):
        capture_chain(model, torch.randn(2, 4), lambda y: y.sum(), rounds=0)


def test_targets_may_be_inputs():
    """loss(output, target): the target comes last among the inputs, another one each step."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    x, target = torch.randn(4, 8), torch.randint(8, (4,))
    loss = nn.functional.cross_entropy
    captured = capture_chain(model, (x, target), loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    plain = outcome(model, lambda: loss(model(x), target))
    assert all(map(torch.equal, plain, outcome(model, lambda: module(x, target))))
    other = (target + 1) % 8
    plain = outcome(model, lambda: loss(model(x), other))
    assert all(map(torch.equal, plain, outcome(model, lambda: module(x, other))))


def test_what_cannot_be_split_says_what_to_do():
    """No line of blocks, and blocks that are no line."""
    with pytest.raises(UnsupportedError) as refused:
        capture_chain(nn.Bilinear(2, 2, 2), (torch.ones(1, 2), torch.ones(1, 2)), lambda y: y.sum())
    assert "--level op" in refused.value.hint
    name, options = SMALL["unet"]
    captured = capture_chain(*build_model(name, **options), rounds=0)
    with pytest.raises(UnsupportedError, match="no line"):
        _ = captured.chain
    assert simulate(captured.workload, Schedule.store_all(captured.workload)).peak_bytes > 0


def _ddp_worker(rank):
    name, options = SMALL["gpt2"]
    model, _, loss = build_model(name, **{**options, "tied": False, "dropout": 0.0})
    torch.manual_seed(rank)
    ids = torch.randint(500, (4, 64))
    plain = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
    loss(plain(ids)).backward()
    captured = capture_chain(model, (ids,), loss, rounds=0)
    module = captured.module(recompute_everything(captured.chain))
    wrapped = nn.parallel.DistributedDataParallel(module)
    for _ in range(2):  # the reducer must be ready again after a step
        model.zero_grad()
        wrapped(ids).backward()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    return all(torch.equal(a.grad, b.grad) for a, b in pairs)


@pytest.mark.slow
def test_two_processes_average_their_gradients():
    """DistributedDataParallel over gloo: the same averages as around the plain model."""
    assert run_ranks(_ddp_worker, 2) == [True, True]
