"""Schedules of blocks that copy what they keep to host memory and back."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.block_level import capture_chain  # noqa: E402
from schedsim.validation.block_level.transfers import Mover  # noqa: E402
from schedsim.validation.dry_cuda import has_values  # noqa: E402
from schedsim.validation.measure import StorageTracker  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.plans.links import Link, with_copies  # noqa: E402

SLOW, QUICK = Link(2e6), Link(1e15)


class Block(nn.Module):
    """Saves its input, an inner tensor, a mask, and its own output."""

    def __init__(self, width=32):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        """The last op saves its output."""
        return torch.tanh(self.outer(self.drop(torch.relu(self.inner(x)))))


def captured(num=4, device="cpu"):
    """A line of blocks, and a step's inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(num))).to(device)
    x = torch.randn(64, 32, device=device)
    return capture_chain(model, x, lambda y: y.square().mean(), rounds=1)


def offloading(num):
    """All but the last block's tensors go, each as soon as it is read; and come back in time."""
    names = []
    for i in range(num):
        names += [f"F{i}"]
        names += [f"d2h:r{i + 1}"] if i < num - 1 else []
        names += [f"d2h:a{i}"] if i > 0 else []
    names += ["loss", f"h2d:a{num - 1}"] if num > 1 else ["loss"]
    for i in range(num - 1, -1, -1):
        names += [f"B{i}"]
        names += [f"h2d:r{i}"] if i > 0 else []
        names += [f"h2d:a{i - 1}"] if i > 1 else []
    return schedsim.Schedule.from_names(names)


def random_schedule(num, seed):
    """Blocks that keep, recompute or copy, each at random."""
    rng = random.Random(seed)
    how = [rng.choice(["keep", "copy", "again"]) for _ in range(num)]
    names, back = [], []
    for i in range(num):
        names.append(f"F{i}")
        if how[i] == "copy":
            names.append(f"d2h:r{i + 1}")
        if i and rng.random() < 0.5:
            names.append(f"d2h:a{i}")
            back.append(i)
    names.append("loss")
    for i in range(num - 1, -1, -1):
        for value in (i + 1, i):
            if value in back:
                names.append(f"h2d:a{value}")
                back.remove(value)
        if how[i] == "again":
            names.append(f"F{i}")
        if how[i] == "copy":
            names.append(f"h2d:r{i + 1}")
        names.append(f"B{i}")
    return schedsim.Schedule.from_names(names)


def step(module, x):
    """Loss and gradients from a fixed start, without gradients, as the level counts them."""
    for p in module.parameters():
        p.grad = None
    torch.manual_seed(3)
    loss = module(x)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters())]


def peak_of(module, x):
    """Bytes of a step on the device."""
    for p in module.parameters():
        p.grad = None
    torch.manual_seed(3)
    with StorageTracker() as tracker:
        tracker.add([list(module.parameters()), [p.grad for p in module.parameters()], x], "static")
        module(x).backward()
    return tracker.peak.total_bytes


def graph_of(chain, link, schedule):
    """The chain with the copies that the schedule runs."""
    tensors = dict.fromkeys(n.partition(":")[2] for n in schedule.names if ":" in n)
    return with_copies(chain.workload, d2h=link, h2d=link, tensors=tensors)


@pytest.mark.parametrize("link", [QUICK, SLOW])
def test_what_is_copied_gives_the_same_bits_in_the_predicted_memory(link):
    chain = captured()
    x = chain.inputs[0]
    schedule = offloading(4)
    graph = graph_of(chain, link, schedule)
    simulation = schedsim.simulate(graph, schedule)
    module = chain.module(schedule, graph)
    kept = chain.module(schedsim.Schedule.store_all(chain.workload))
    assert all(map(torch.equal, step(kept, x), step(module, x)))
    pools = simulation.peak_by_pool
    measured, most = peak_of(module, x), peak_of(kept, x)
    assert most == pytest.approx(
        schedsim.simulate(chain.workload, kept_schedule(chain)).peak_bytes, rel=2e-3
    )
    # Nothing is at the same time here, so that what overlaps for a moment only may not.
    assert 0.9 * pools["device"] <= measured <= pools["device"]
    if link is QUICK:
        assert measured == pytest.approx(pools["device"], rel=2e-3)
        assert measured < 0.8 * most
    assert module.mover.pool.used_bytes == 0
    assert module.mover.pool.peak_bytes == pools["host"]
    assert sum(module.run_counts.values()) == len(schedule.names)


def kept_schedule(chain):
    """Store-all."""
    return schedsim.Schedule.store_all(chain.workload)


@pytest.mark.parametrize("seed", range(12))
def test_random_mixtures_of_keeping_recomputing_and_copying(seed):
    chain = captured(5)
    x = chain.inputs[0]
    schedule = random_schedule(5, seed)
    link = SLOW if seed % 2 else QUICK
    if not any(":" in name for name in schedule.names):
        pytest.skip("this mixture copies nothing")
    graph = graph_of(chain, link, schedule)
    simulation = schedsim.simulate(graph, schedule)
    module = chain.module(schedule, graph)
    expected = step(chain.module(kept_schedule(chain)), x)
    for _ in range(2):  # the second step meets the first one's host memory
        assert all(map(torch.equal, expected, step(module, x)))
    random_states = 2 * 5056 * sum(name[0] == "F" for name in schedule.names)
    measured = peak_of(module, x)
    assert measured <= simulation.peak_by_pool["device"] + random_states
    assert measured >= 0.85 * simulation.peak_by_pool["device"]
    assert module.mover.pool.used_bytes == 0
    assert module.mover.pool.peak_bytes <= simulation.peak_by_pool["host"]


def test_a_capacity_makes_runs_wait_for_memory_and_the_step_stays_within():
    """The order of starts is the simulation's: what waits for a copy runs behind it."""
    chain = captured()
    x = chain.inputs[0]
    schedule = offloading(4)
    graph = graph_of(chain, SLOW, schedule)
    free = schedsim.simulate(graph, schedule)
    least = schedsim.simulate(graph_of(chain, QUICK, schedule), schedule)
    limit = (free.peak_bytes + least.peak_bytes) // 2
    if limit == free.peak_bytes:
        pytest.skip("the copies take no time beside these runs")
    within = schedsim.simulate(graph, schedule, capacities={"device": limit})
    assert within.peak_bytes <= limit
    module = chain.module(schedule, graph, {"device": limit})
    assert peak_of(module, x) <= limit
    assert all(map(torch.equal, step(chain.module(kept_schedule(chain)), x), step(module, x)))


def test_parameters_stay_where_they_are():
    """They are saved by the blocks too, and no copy takes them."""
    chain = captured(3)
    before = [p.data_ptr() for p in chain.model.parameters()]
    schedule = offloading(3)
    module = chain.module(schedule, graph_of(chain, QUICK, schedule))
    step(module, chain.inputs[0])
    assert before == [p.data_ptr() for p in chain.model.parameters()]
    saved = sum(s.saved_bytes - s.output_bytes for s in chain.workload.stages[:2])
    values = sum(s.output_bytes for s in chain.workload.stages[:2])
    assert module.mover.pool.peak_bytes == saved + values


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_copies_on_streams_of_their_own():
    """On CUDA: the same bits, the predicted requested bytes, pinned host memory."""
    from schedsim.validation.measure.cuda import requested_bytes, requested_peak, reset_peak

    chain = captured(6, "cuda")
    x = chain.inputs[0]
    schedule = offloading(6)
    graph = graph_of(chain, Link(20e9), schedule)
    module = chain.module(schedule, graph)
    expected = step(chain.module(kept_schedule(chain)), x)
    for _ in range(3):
        found = step(module, x)
        assert not has_values(x.device) or all(map(torch.equal, expected, found))
    for p in module.parameters():
        p.grad = None
    torch.cuda.synchronize()
    before = requested_bytes(x.device)
    reset_peak(x.device)
    module(x).backward()
    torch.cuda.synchronize()
    # Of what counts as static, the loss and the gradient it is given, 4 bytes each, come later.
    resident = chain.workload.static_bytes - 2 * 4 + chain.workload.input_bytes
    measured = requested_peak(x.device) - before + resident
    assert measured <= schedsim.simulate(graph, schedule).peak_by_pool["device"]
    assert all(
        buffer.is_pinned() for pairs in module.mover.pool._free.values() for buffer, _ in pairs
    )


def test_a_device_without_an_index_is_the_present_one(monkeypatch):
    """Tensors say cuda:1 where a mover is told cuda: it would find none, and copy nothing."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    assert Mover(torch.device("cuda")).device == torch.device("cuda:1")
    assert Mover(torch.device("cuda:0")).device == torch.device("cuda:0")
    assert Mover(torch.device("cpu")).device == torch.device("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kept_buffers_take_no_memory_of_the_device():
    """What validation puts back afterwards is kept on the host: it is not the model's peak."""
    from schedsim.validation.block_level.repeated_forward import untouched
    from schedsim.validation.measure.cuda import requested_bytes

    model = nn.BatchNorm1d(1000).cuda()
    before = requested_bytes()
    with untouched(model):
        assert requested_bytes() == before
        model.running_mean.add_(1)
    assert requested_bytes() == before
