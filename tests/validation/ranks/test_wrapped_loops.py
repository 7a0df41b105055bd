"""Loops within DistributedDataParallel and FSDP2, as people write them, beside their plain runs."""

from __future__ import annotations

import contextlib
import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from residual_layer import ResidualLayer  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import schedsim  # noqa: E402

WIDTH = 16


class Around(nn.Module):
    """Blocks with modules around them, one of which no step uses."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList(ResidualLayer(WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, 50)
        self.spare = nn.Linear(3, 3)

    def forward(self, ids):
        """Logits."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


LOSS = nn.functional.cross_entropy


def batches(rank, number=4, size=64):
    """(ids, targets) of a rank."""
    torch.manual_seed(10 + rank)
    return [(torch.randint(50, (size,)), torch.randint(50, (size,))) for _ in range(number)]


def _trained(step, model, data, without_sync=(), wrapper=None):
    """The gradients that each step of the optimizer finds."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for number, (x, target) in enumerate(data):
        stays = number in without_sync
        with wrapper.no_sync() if stays else contextlib.nullcontext():
            step(x, target).backward()
        if not stays:
            found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            optimizer.step()
            optimizer.zero_grad()
    return found


def _averaged(rank, level, options, without_sync):
    torch.manual_seed(0)
    plain = Around()
    model, data = copy.deepcopy(plain), batches(rank)
    made = DistributedDataParallel(plain, **options)
    wanted = _trained(lambda x, y: LOSS(made(x), y), plain, data, without_sync, made)
    kept = {"keep_gradients": True} if without_sync else {}
    if level == "in place":
        schedsim.rematerialize(model, data[0][0], "130%", in_place=True, effort=0.2)
        other = DistributedDataParallel(model, **options)
        found = _trained(lambda x, y: LOSS(other(x), y), model, data, without_sync, other)
    else:
        given = {"level": level, "effort": 0.2, **kept}
        module = schedsim.rematerialize(model, data[0], "150%", LOSS, **given)
        other = DistributedDataParallel(module, **options)
        found = _trained(other, model, data, without_sync, other)
    return len(found) == len(wanted) > 0 and all(map(torch.equal, found, wanted))


STATIC = {"static_graph": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("level", "options", "without_sync"),
    [
        ("op", STATIC, ()),
        ("block", STATIC, ()),
        pytest.param("in place", STATIC, (), marks=pytest.mark.slow),
        pytest.param("op", {"find_unused_parameters": True}, (0, 1), marks=pytest.mark.slow),
    ],
)
def test_every_step_is_averaged(level, options, without_sync):
    """A wrapper of a static graph counted the passes of planning, and averaged the first alone."""
    assert run_ranks(_averaged, 2, level, options, without_sync) == [True, True]


def _by_blocks(rank):
    torch.manual_seed(0)
    plain = Around()
    del plain.spare
    model, data = copy.deepcopy(plain), batches(rank)
    made = DistributedDataParallel(plain)
    wanted = _trained(lambda x, y: LOSS(made(x), y), plain, data, (0, 1), made)
    module = schedsim.rematerialize(model, data[0], "150%", LOSS, level="block", effort=0.2)
    other = DistributedDataParallel(module)
    found = _trained(other, model, data, (0, 1), other)
    return all(map(torch.equal, found, wanted))


@pytest.mark.slow
def test_modules_around_the_blocks_hang_on_no_others_hooks():
    """The wrapper was told twice of each parameter, as the first block hung on all of them."""
    assert run_ranks(_by_blocks, 2) == [True, True]


def _refused(rank):
    torch.manual_seed(0)
    data, said = batches(rank, 1)[0], []
    wrapper = DistributedDataParallel(Around(), static_graph=True)
    module = schedsim.rematerialize(Around(), data, "150%", LOSS, level="block", effort=0.2)
    other = DistributedDataParallel(module, find_unused_parameters=True)
    calls = (
        lambda: schedsim.rematerialize(wrapper, data[0], "150%", in_place=True),
        lambda: other(*data),
    )
    for call in calls:
        try:
            call()
        except schedsim.UnsupportedError as error:
            said.append((error.message, error.hint))
    return said


def test_wrappers_that_would_average_something_else_are_refused():
    """By the message that names the argument, and what to do instead."""
    for static, unused in run_ranks(_refused, 2):
        assert "static_graph=True) counts all backward passes before its first step" in static[0]
        assert static[1].startswith("give the budget first")
        assert "find_unused_parameters=True) looks for parameters in the graph" in unused[0]
        assert unused[1].startswith("static_graph=True in its place")


def _counted(rank):
    torch.manual_seed(0)
    data, said = batches(rank, 2), []
    module = schedsim.rematerialize(
        Around(), [t[:32] for t in data[0]], "500%", LOSS, level="block", effort=0.2
    )
    wrapper = DistributedDataParallel(module, static_graph=True)
    try:
        wrapper(*data[0])  # of another size: its blocks are measured
    except schedsim.UnsupportedError as error:
        said.append(error.message)
    return said


def test_passes_that_a_static_graph_counts_are_told():
    """Where a plan is needed in the wrapper's first step, which measures blocks."""
    for said in run_ranks(_counted, 2):
        assert len(said) == 1
        assert "planning has just run some: it would average no later step" in said[0]


def _uneven(rank):
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    plain = Around()
    del plain.spare
    model, mesh = copy.deepcopy(plain), init_device_mesh("cpu", (dist.get_world_size(),))
    for one in (plain, model):
        for part in [one.embedding, *one.layers, one.head, one]:
            fully_shard(part, mesh=mesh)
    data = batches(rank, 2)
    if rank == 1:
        data[1] = tuple(tensor[:1] for tensor in data[1])
    wanted = _trained(lambda x, y: LOSS(plain(x), y), plain, data)
    module = schedsim.rematerialize(model, data[0], "95%", LOSS, level="block", effort=0.2)
    found = _trained(module, model, data)
    return all(
        torch.equal(one.full_tensor(), other.full_tensor())
        for one, other in zip(found, wanted, strict=True)
    )


@pytest.mark.slow
def test_a_last_batch_of_one_row_is_planned_by_all():
    """Its output is small: the rank looked alone at who keeps it, in a collective."""
    assert run_ranks(_uneven, 2) == [True, True]


def _dropped(rank):
    gc.collect()
    gc.disable()
    found = []
    try:
        for level in ("op", "block"):
            model, data = Around(), batches(rank, 1)[0]
            options = {"level": level, "effort": 0.2}
            module = schedsim.rematerialize(model, data, "150%", LOSS, **options)
            wrapper = DistributedDataParallel(module, static_graph=True)
            _trained(wrapper, model, [data] * 2)
            ends = weakref.ref(wrapper)
            del wrapper
            found.append(ends() is None)
    finally:
        gc.enable()
    return found


def test_a_wrapper_ends_with_its_last_name():
    """Nothing of ours holds it: its reducer would hold the process group beyond its end."""
    assert run_ranks(_dropped, 1) == [[True, True]]
