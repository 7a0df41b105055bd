"""How unevenly fresh routers spread tokens."""

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

PATH = Path(__file__).parents[2] / "benchmarks/router_spread.py"


@pytest.fixture
def spread(monkeypatch):
    """The benchmark, of a model that takes milliseconds."""
    spec = importlib.util.spec_from_file_location("router_spread", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, value in (("WIDTH", 64), ("LAYERS", 3), ("TOKENS", 32), ("SEQUENCE", 8)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "_WIDER", 32.0)
    return module


def test_the_fullest_rank_over_the_mean(spread):
    """Of 64 experts on 8 ranks: 1 where all get the same, 8 where one gets all."""
    assert spread.uneven(torch.ones(64)) == 1.0
    assert spread.uneven(torch.eye(64)[5]) == 8.0


def test_biases_turn_to_experts_with_few_tokens(spread):
    """By 0.001 a step, and their mean stays."""
    layer = spread.Layer(1)
    layer.count = torch.arange(64.0)
    layer.balance()
    assert layer.bias[0] > 0 > layer.bias[-1]
    assert float(layer.bias[0] - layer.bias[-1]) == pytest.approx(2e-3)
    assert float(layer.bias.sum()) == pytest.approx(0.0, abs=1e-6)


def test_words_that_are_common_have_small_numbers(spread, tmp_path):
    """Texts are read in the order that is given."""
    (tmp_path / "a.txt").write_text("the cat, the dog")
    assert spread.tokens_of([tmp_path / "a.txt"]).tolist() == [0, 1, 2, 0, 3]


def test_a_model_learns_while_its_routers_are_watched(spread):
    """The share is that of a rank of eight: from 1 to 8."""
    tokens = torch.arange(400) % 7
    found = list(spread.spreads(tokens, steps=3, warmup=1))
    assert found[-1][0] < found[0][0]
    assert all(1.0 <= share <= 8.0 for _, share in found)
    assert found == list(spread.spreads(tokens, steps=3, warmup=1))
