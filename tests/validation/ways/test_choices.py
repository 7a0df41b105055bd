"""The ways that a caller allows, each planned, and the quickest that fits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models import build_model  # noqa: E402
from schedsim.validation.ways import choices  # noqa: E402
from schedsim.validation.ways.choices import candidates, wanted  # noqa: E402
from schedsim.validation.whole_step.step_settings import Settings  # noqa: E402
from step_models import TinyGPT, make_step, token_loss  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import UnsupportedError  # noqa: E402

SIZES = {"layers": 2, "hidden": 16, "heads": 2, "vocab": 199, "seq": 32, "dropout": 0.0}


@pytest.mark.slow
def test_automatic_is_the_quickest_that_fits():
    """Among all that were looked at; what does not fit is not chosen."""
    torch.manual_seed(0)
    model, ids = TinyGPT(dropout=0.0), torch.randint(0, 61, (8, 16))
    step = {"loss": token_loss, "level": "block", "effort": 0.2}
    least = schedsim.rematerialize(model, (ids, ids), "100%", **step)
    with pytest.raises(schedsim.InfeasibleBudgetError) as refused:
        schedsim.rematerialize(model, (ids, ids), 1000, **step)
    budget = int(0.9 * refused.value.min_feasible_bytes)
    module = schedsim.rematerialize(model, (ids, ids), budget, accumulate="auto", **step)
    ways = {way.num_parts: way for way in module.ways}
    assert set(ways) == {1, 2, 4, 8}
    assert ways[1].status in ("does not fit", "slower")
    chosen = next(way for way in module.ways if way.status == "chosen")
    others = [w.step_s for w in module.ways if w.status in ("fits", "slower")]
    assert chosen.num_parts > 1
    assert all(chosen.step_s <= step_s for step_s in others)
    assert module.plan.peak_bytes <= budget < least.plan.peak_bytes
    assert f"{chosen.num_parts} micro-batches" in module.report()
    assert module.to_dict()["ways"][0]["status"] in ("chosen", "fits", "slower", "does not fit")


def asked(batch=8, *, level="block", **allowed):
    """What is to be planned for a small GPT-2, and what is refused."""
    model, inputs, loss = build_model("gpt2", **SIZES, batch=batch)
    settings = Settings("1GB", loss=loss, level=level, **allowed)
    return candidates(model, inputs, {}, settings)


def test_nothing_else_than_recomputation_unless_it_is_allowed():
    """One micro-batch in one chunk is no other way."""
    assert asked() == ([({}, 1, False)], [])
    for allowed in ({"accumulate": 1}, {"accumulate": None}, {}, {"chunk": {}}):
        assert not wanted(Settings("1GB", **allowed))
    for allowed in (
        {"accumulate": 2},
        {"accumulate": "auto"},
        {"chunk": "auto"},
        {"offload": "pcie4"},
    ):
        assert wanted(Settings("1GB", **allowed))


def test_automatic_numbers_are_divisors_of_the_batch():
    """All of a few; of many, spread from one to the batch."""
    few, _ = asked(8, accumulate="auto")
    assert [num for _, num, _ in few] == [1, 2, 4, 8]
    many, _ = asked(360, accumulate="auto")
    numbers = [num for _, num, _ in many]
    assert len(numbers) == 6
    assert (numbers[0], numbers[-1]) == (1, 360)
    assert all(360 % num == 0 for num in numbers)
    assert numbers == sorted(set(numbers))
    assert [num for _, num, _ in asked(8, accumulate=5)[0]] == [5]


def test_every_combination_is_asked_for_but_useless_ones(monkeypatch):
    """Chunks of the feed-forward layers come with those of the head, which cost nothing."""
    monkeypatch.setattr(choices, "auto_chunks", lambda *given: 3)
    found, refused = asked(2, chunk="auto", accumulate="auto", offload="pcie4")
    assert refused == []
    pieces = [frozenset(chunks) for chunks, _, _ in found]
    assert frozenset({"mlp"}) not in pieces
    assert {frozenset(), frozenset({"head"}), frozenset({"head", "mlp"})} == set(pieces)
    assert {num for _, num, _ in found} == {1, 2}
    assert {copies for _, _, copies in found} == {True, False}
    assert {copies for _, _, copies in asked(2, level="auto", offload="pcie4")[0]} == {True}


def test_what_cannot_be_is_refused_with_its_reason():
    """By choice among others; as an error where it alone was asked for."""
    model, inputs, loss = make_step("resnet")
    settings = Settings("1GB", loss=loss, accumulate="auto", chunk="auto")
    found, refused = candidates(model, inputs, {}, settings)
    assert found == [({}, 1, False)]
    assert all(way.status == "refused" and way.note for way in refused)
    assert any("normalises over the batch" in way.note for way in refused)
    with pytest.raises(UnsupportedError, match="normalises over the batch"):
        candidates(model, inputs, {}, Settings("1GB", loss=loss, accumulate=2))
