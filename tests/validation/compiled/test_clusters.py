"""Clusters: what is merged, and what may not be."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fused_steps import branched, captured_step, convolutional, gated  # noqa: E402
from schedsim.validation.capture.to_graph import to_graph  # noqa: E402
from schedsim.validation.compiled.clusters import MOST_OPS, FusionClusters, StorageReaders  # noqa: E402
from schedsim.validation.compiled.decompose import decompose  # noqa: E402
from schedsim.validation.compiled.fuse import _in_clusters, fused  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from schedsim.validation.compiled.group_sizes import GroupSize  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402
from schedsim.api import try_plan  # noqa: E402


def clustered(make):
    program = decompose(captured_step(*make()).program)
    clusters = FusionClusters(program)
    clusters.merge_vanishing()
    return program, clusters


@pytest.mark.slow
@pytest.mark.parametrize("make", [gated, convolutional])
def test_an_order_of_clusters_exists_and_is_legal(make):
    """All that a cluster reads is made by those before it: none needs itself through another."""
    program, clusters = clustered(make)
    made, reading = set(), clusters.reading
    for ops in clusters.ordered():
        own = {s for op in ops for s in reading.writes[op]}
        for op in ops:
            for storage in reading.reads[op]:
                assert storage in made | own or program.storages[storage].call < 0
        made |= own
    assert {op for ops in clusters.ordered() for op in ops} == set(reading.ops)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gated, convolutional])
def test_a_cluster_is_of_one_half_and_of_bounded_size(make):
    program, clusters = clustered(make)
    for ops in clusters.members.values():
        assert len({op < program.seed for op in ops}) == 1
        assert len(ops) <= MOST_OPS


@pytest.mark.slow
def test_a_merge_that_would_need_itself_is_refused():
    """Two ops with a product of matrices between them."""
    program, clusters = clustered(gated)
    reading = StorageReaders(program)
    for first in reading.ops:
        for storage in reading.writes[first]:
            for between in reading.readers.get(storage, ()):
                after = [r for s in reading.writes[between] for r in reading.readers.get(s, ())]
                if not clusters.can_fuse(between) and after and clusters.can_fuse(first):
                    assert not clusters.merge([first, after[0]])
                    return
    pytest.fail("no product between two ops")


class _OneWeightForAllSteps(torch.nn.Module):
    """A cell whose weight is much larger than its state."""

    def __init__(self, steps=8, width=64):
        super().__init__()
        self.cell, self.steps = torch.nn.Linear(width, width), steps

    def forward(self, x):
        for _ in range(self.steps):
            x = torch.tanh(self.cell(x))
        return x


def test_parts_of_the_gradient_of_a_shared_weight_do_not_wait_for_each_other():
    """Each is added to the sum when it is made; in one group all of them would be there."""
    torch.manual_seed(0)
    model, inputs = _OneWeightForAllSteps(), (torch.randn(4, 64), torch.randn(4, 64))
    captured = captured_step(model, inputs, torch.nn.functional.mse_loss)
    program = fused(captured.program, Groups())
    graph = to_graph(program, "steps", captured.graph.static_bytes)
    plain = simulate(captured.graph, Schedule.store_all(captured.graph)).peak_bytes
    weight = model.cell.weight.numel() * 4
    assert simulate(graph, Schedule.store_all(graph)).peak_bytes <= plain + 2 * weight


class _ScanOfSelections(torch.nn.Module):
    """A recurrence over slices of one tensor, as of a state-space model."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(8))

    def forward(self, x):
        driven = torch.exp(x[..., None] * self.scale)
        state, kept = 0.0, []
        for t in range(x.shape[1]):
            state = state * driven[:, t] + x[:, t, None]
            kept.append(state.sum(-1))
        return torch.stack(kept, 1)


@pytest.mark.slow
def test_gradients_of_selections_are_made_where_they_are_added_up():
    """None of them is a tensor of the size of the whole."""
    torch.manual_seed(0)
    inputs = (torch.randn(16, 12), torch.randn(16, 12))
    captured = captured_step(_ScanOfSelections(), inputs, torch.nn.functional.mse_loss)
    program = fused(captured.program, Groups())
    targets = [call.target for call in program.calls if not call.is_view]
    assert torch.ops.aten.select_backward.default in [c.target for c in captured.program.calls]
    assert not {torch.ops.aten.select_backward.default, torch.ops.aten.select_scatter.default} & {
        *targets
    }
    graph = to_graph(program, "scan", captured.graph.static_bytes)
    plain = simulate(captured.graph, Schedule.store_all(captured.graph)).peak_bytes
    assert simulate(graph, Schedule.store_all(graph)).peak_bytes < 0.75 * plain


@pytest.mark.slow
def test_narrow_groups_fit_the_least_budget_of_the_ops():
    """A sum of many parts holds two of them, as the ops do, and not all of them."""
    captured = captured_step(*branched())

    def least(program):
        graph = to_graph(program, "branches", 0)
        return try_plan(graph, 1, "auto", effort=0.5).min_feasible_bytes

    wide = fused(captured.program, Groups())
    narrow = fused(captured.program, Groups(), size=GroupSize.SMALL)
    by_op = least(captured.program)
    assert least(narrow) <= by_op < 1.2 * by_op < least(wide)


@pytest.mark.slow
def test_groups_of_middle_size_need_no_more_room_than_a_kernel():
    """So they are fewer than small ones, and none of them sets the least budget."""
    captured = captured_step(*convolutional())
    num = {}
    for size in GroupSize:
        _, clusters = _in_clusters(captured.program, size)
        num[size] = len(clusters.members)
        kernels = [i for i in clusters.reading.ops if not clusters.can_fuse(i)]
        largest = max(clusters._room_bytes([i]) for i in kernels)
        rooms = [clusters._room_bytes(ops) for ops in clusters.members.values() if len(ops) > 1]
        assert (max(rooms) > largest) == (size is GroupSize.LARGE)
    assert num[GroupSize.LARGE] < num[GroupSize.MEDIUM] < 0.7 * num[GroupSize.SMALL]
