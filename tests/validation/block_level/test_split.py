"""Foreign models, split around their repeated blocks without touching their code."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from replayed_blocks import recompute_everything  # noqa: E402
from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.block_level.block_outputs import BlockOutput  # noqa: E402
from schedsim.validation.block_level.split import Slot, find_blocks  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL, outcome  # noqa: E402
from torch import nn  # noqa: E402

from schedsim import Schedule, UnsupportedError, simulate  # noqa: E402


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


def test_where_the_activation_is_taken():
    """By position or by keyword; nothing else moves."""
    second, named = Slot(1), Slot("x")
    args, kwargs = ("a", "value", "c"), {"k": 1}
    assert second.take(args, kwargs) == "value"
    assert second.without(args, kwargs) == (("a", None, "c"), {"k": 1})
    assert second.put("new", args, kwargs) == (("a", "new", "c"), {"k": 1})
    assert named.take((), {"x": 2}) == 2
    assert named.put(3, args, {"x": 2, "k": 1}) == (args, {"x": 3, "k": 1})


class Lists(nn.Module):
    """Two lists; the longer line wins; a block that is used twice ends one."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.short = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.long = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.again = again

    def forward(self, x):
        for layer in self.short:
            x = layer(x)
        x = torch.tanh(x)
        for layer in self.long:
            x = layer(x)
        return self.long[0](x) if self.again else x


@pytest.mark.parametrize("again", [False, True])
def test_the_longest_line_is_found(again):
    """And the model is left as it was: no hook, no forward of ours."""
    model = Lists(again)
    found = find_blocks(model, (torch.randn(2, 4),), {})
    assert found.blocks == list(model.long)
    assert found.slot == Slot(0)
    assert found.outputs == [BlockOutput()] * 3
    assert all(not layer._forward_hooks for layer in (*model.short, *model.long))


def test_given_blocks_must_feed_each_other():
    """Else it is said how many do."""
    model = Lists()
    x = torch.randn(2, 4)
    assert find_blocks(model, (x,), {}, list(model.short)).blocks == list(model.short)
    with pytest.raises(UnsupportedError, match="only 3 of the 5 blocks given feed each other"):
        find_blocks(model, (x,), {}, [*model.short, *model.long])
