"""What was measured of blocks, as a chain or a graph."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level.bench import Measured
from schedsim.validation.block_level.lowering import lowered
from schedsim.validation.block_level.parts import Part
from schedsim.validation.block_level.sizes import Sizes
from torch import nn

from schedsim import Chain, Graph, Schedule, simulate


def part(name: str, reads=(0,), module=None) -> Part:
    return Part(name, lambda step, *values: None, tuple(reads), (module or nn.Linear(2, 2),))


def row(forward, stored, replayed, *, saved=10) -> Measured:
    """Rounds of (forward alone, store-all's two, a replay with its backward)."""
    return Measured(
        saved_bytes=saved,
        forward_workspace_bytes=1,
        saving_workspace_bytes=2,
        backward_workspace_bytes=3,
        forward_s=list(forward),
        saving_s=[s / 2 for s in stored],
        backward_s=[s / 2 for s in stored],
        replayed_s=list(replayed),
    )


def loss_row() -> Measured:
    return Measured(forward_workspace_bytes=7, backward_s=[0.5, 0.25, 1.0])


SIZES = Sizes((4, 5, 6), 100, ((True,), (True,), (True,)))


def test_a_line_is_a_chain_with_the_numbers_that_were_measured():
    """Bytes by place; the loss's time is a median; what the library holds is static."""
    rows = [row([1], [3], [3]), row([2], [6], [6], saved=20), loss_row()]
    chain = lowered("model", [part("one"), part("two", (1,))], SIZES, rows, 1000)
    assert isinstance(chain, Chain)
    assert (chain.input_bytes, chain.static_bytes) == (4, 1100)
    assert (chain.loss_s, chain.loss_workspace_bytes) == (0.5, 7)
    assert [stage.name for stage in chain.stages] == ["one", "two"]
    assert [stage.output_bytes for stage in chain.stages] == [5, 6]
    assert [stage.saved_bytes for stage in chain.stages] == [10, 20]
    first = chain.stages[0]
    workspaces = (
        first.forward_workspace_bytes, first.saving_workspace_bytes, first.backward_workspace_bytes
    )  # fmt: skip
    assert workspaces == (1, 2, 3)


@pytest.mark.parametrize(
    ("forward", "stored", "replayed", "want"),
    [
        ([1.0], [3.0], [3.0], (1.0, 2.0)),  # a replay costs what the forward costs
        ([1.0], [3.0], [3.25], (1.25, 1.75)),  # somewhat more
        ([1.0], [3.0], [9.0], (1.5, 1.5)),  # no more than half as much again
        ([1.0], [3.0], [1.0], (0.5, 2.5)),  # and no less than half
        ([4.0], [3.0], [9.0], (2.25, 0.75)),  # the backward keeps half of its own
        ([1.0, 2.0, 9.0], [3.0, 6.0, 27.0], [3.0, 6.0, 27.0], (2.0, 4.0)),  # medians of rounds
    ],
)
def test_a_forward_takes_what_its_replay_takes_longer(forward, stored, replayed, want):
    """So that store-all takes what was measured, and replays what they were measured to add."""
    rows = [row(forward, stored, replayed), loss_row()]
    stage = lowered("m", [part("one")], Sizes((4, 5), 0, ((True,),)), rows, 0).stages[0]
    assert (stage.forward_s, stage.backward_s) == pytest.approx(want)
    assert stage.forward_s + stage.backward_s == pytest.approx(sorted(stored)[len(stored) // 2])


def test_blocks_of_one_kind_share_their_times():
    """The median over all of them; another width has its own."""
    sizes = Sizes((4, 5, 5, 5), 0, ((True,),) * 4)
    parts = [part("a"), part("b", (1,)), part("c", (2,), nn.Linear(2, 3))]
    rows = [row([9], [30], [30]), row([1], [3], [3]), row([4], [12], [12]), loss_row()]
    sizes = Sizes((5, 5, 5, 5), 0, ((True,),) * 4)
    one, two, three = lowered("m", parts, sizes, rows, 0).stages
    assert one.forward_s == two.forward_s
    assert one.forward_s + one.backward_s == pytest.approx(16.5)
    assert three.forward_s + three.backward_s == 12


def test_equal_names_are_told_apart():
    """By their places."""
    rows = [row([1], [3], [3]), row([1], [3], [3]), loss_row()]
    chain = lowered("m", [part("same"), part("same", (1,))], SIZES, rows, 0)
    assert [stage.name for stage in chain.stages] == ["0.same", "1.same"]


def test_a_skip_makes_a_graph_with_a_gradient_for_each_reader():
    """Value 1 is read twice: two gradients of it, which the first block's backward adds."""
    parts = [part("a"), part("b", (1,)), part("c", (2, 1))]
    sizes = Sizes((4, 5, 6, 7), 50, ((True,),) * 4)
    rows = [row([1], [3], [3], saved=size) for size in (5, 16, 27)] + [loss_row()]
    graph = lowered("m", parts, sizes, rows, 0)
    assert isinstance(graph, Graph)
    assert graph.op_names == ("F0", "F1", "F2", "loss", "B2", "B1", "B0")
    b2, b1, b0 = graph.ops[4:]
    assert b2.writes == {"d2.2": 6, "d1.2": 5}
    assert set(b0.reads) >= {"d1.1", "d1.2", "a0", "a1"}
    assert b0.writes == {}
    assert "d3.loss" in b2.reads
    # The first block keeps no more than its output: there is no bundle.
    assert graph.ops[0].writes == {"a1": 5}
    assert graph.ops[1].writes == {"a2": 6, "r2": 10}
    assert graph.ops[1].optional == ("r2",)
    assert "r2" in b1.reads
    assert simulate(graph, Schedule.store_all(graph)).makespan_s == pytest.approx(9.5)
