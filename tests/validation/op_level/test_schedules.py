"""Any schedule of a captured step computes what the plain model computes, in the bytes foretold."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from chains import random_schedule
from schedsim.validation.capture import capture
from schedsim.validation.capture.skeleton import run_step
from step_models import STEPS, make_step
from storage_tracker import StorageTracker, measured_peak

from schedsim import Schedule, simulate

NUM_SCHEDULES = 20


class Bench:
    """A model, its graph, and steps that all start from the same state."""

    def __init__(self, name):
        self.model, self.inputs, self.loss = make_step(name)
        self.captured = capture(self.model, self.inputs, self.loss)
        self.graph = self.captured.graph
        self.state = copy.deepcopy(self.model.state_dict())

    def reset(self):
        self.model.load_state_dict(self.state)
        torch.manual_seed(7)
        for parameter in self.model.parameters():
            parameter.grad = None

    def outcome(self, loss):
        """What a step leaves: loss, gradients, buffers, and where the generator stands."""
        gradients = [parameter.grad.clone() for parameter in self.model.parameters()]
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        return [loss.detach().clone(), *gradients, *buffers, torch.get_rng_state()]

    def run(self, schedule):
        self.reset()
        module = self.captured.module(schedule)
        tracker, loss = measured_peak(module, self.inputs)
        return module, tracker, self.outcome(loss)

    def eager(self):
        self.reset()
        loss = run_step(self.model, self.loss, 1, self.inputs, {})
        loss.backward()
        return self.outcome(loss)


@pytest.fixture(scope="module", params=STEPS)
def bench(request):
    return Bench(request.param)


def equal(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_store_all_is_the_plain_model(bench):
    """Bit for bit, where the kernels are the same: dropout, statistics and generator included."""
    module, tracker, outcome = bench.run(Schedule.store_all(bench.graph))
    assert equal(outcome, bench.eager())
    assert set(module.run_counts.values()) == {1}
    assert tracker.peak_bytes == simulate(bench.graph, module.schedule).peak_bytes


def test_nothing_is_left_after_a_step(bench):
    """But what the caller holds: parameters, buffers, inputs and gradients."""
    _, tracker, _ = bench.run(random_schedule(np.random.default_rng(1), bench.graph))
    sizes = {name: size for op in bench.graph.ops for name, size in op.writes.items()}
    phases = {name: op.phase for op in bench.graph.ops for name in op.writes}
    held = [name for name in bench.graph.results if phases.get(name) == "backward"]
    held.remove("loss.grad")
    results = sum(sizes[name] for name in held) + sum(bench.graph.inputs.values())
    assert tracker.live_bytes == bench.graph.static_bytes + results
    assert len(held) == len(bench.captured.program.gradients)


def test_random_schedules_compute_the_same_in_the_predicted_bytes(bench):
    """Repeats anywhere: the same bits, every op as often as scheduled, the peak to the byte.

    But for the statistics of a batch norm that only a repeat reads which does without them.
    """
    unread = sum(op.writes[name] for op in bench.graph.ops for name in op.optional)
    _, _, reference = bench.run(Schedule.store_all(bench.graph))
    lengths = set()
    for seed in range(NUM_SCHEDULES):
        schedule = random_schedule(np.random.default_rng(seed), bench.graph)
        lengths.add(len(schedule))
        module, tracker, outcome = bench.run(schedule)
        assert equal(outcome, reference), seed
        assert Counter(schedule.names) == Counter(module.run_counts)
        predicted = simulate(bench.graph, schedule).peak_bytes
        assert predicted - unread <= tracker.peak_bytes <= predicted, seed
    assert len(lengths) > 1
    assert max(lengths) > bench.graph.num_ops


def test_dropping_and_recomputing_everything_lowers_the_measured_peak():
    """Each block forgotten after its forward and run again before its backward."""
    bench = Bench("mlp")
    schedule = segmented(bench.graph)
    store_all = bench.run(Schedule.store_all(bench.graph))
    frugal = bench.run(schedule)
    assert equal(frugal[2], store_all[2])
    assert frugal[1].peak_bytes == simulate(bench.graph, schedule).peak_bytes
    assert frugal[1].peak_bytes < store_all[1].peak_bytes


def segmented(graph):
    """Store-all, with the ops of a layer repeated right before the first backward op that reads
    what they make."""
    layer = {op.name: i // 3 for i, op in enumerate(graph.ops) if op.phase == "forward"}
    order = [op.name for op in graph.ops if op.phase != "backward"]
    done = {max(layer.values())}
    for op in graph.ops:
        if op.phase != "backward":
            continue
        for tensor in op.reads:
            producer = graph.producer(tensor)
            of = None if producer is None else layer.get(graph.ops[producer].name)
            if of is not None and of not in done:
                done.add(of)
                order += [name for name, index in layer.items() if index == of]
        order.append(op.name)
    return Schedule.from_names(order)


def test_a_repeated_op_is_really_called_again(bench):
    """Counted from outside, by the dispatcher: as many calls of each function as runs."""
    schedule = random_schedule(np.random.default_rng(3), bench.graph)
    bench.reset()
    module = bench.captured.module(schedule)
    with StorageTracker() as tracker:
        module(*bench.inputs).backward()
    expected = Counter()
    program = bench.captured.program
    targets = {c.name: c.target for c in program.calls}
    for name in schedule.names:
        if name != "loss.grad" and not targets[name].__name__.startswith("laid_out"):
            expected[targets[name].name()] += 1
    lean = "aten::_native_batch_norm_legit.no_stats"
    full = "aten::_native_batch_norm_legit_functional"
    calls = Counter(tracker.num_calls)
    calls[full] += calls.pop(lean, 0)
    calls["aten::add.Tensor"] += calls.pop("aten::add_.Tensor", 0)  # sums of gradients in place
    for function, count in expected.items():
        assert calls[function] == count, function


def test_a_part_that_is_read_again_is_not_overwritten():
    """A sum of gradients runs, and later again: its parts must still be there the second time."""
    bench = Bench("gpt")
    reference = bench.run(Schedule.store_all(bench.graph))[2]
    sums = [op.name for op in bench.graph.ops if op.in_place]
    for name in sums[:3]:
        names = list(bench.graph.op_names)
        names.insert(names.index(name) + 1, name)
        schedule = Schedule.from_names(names)
        module, tracker, outcome = bench.run(schedule)
        assert equal(outcome, reference)
        assert tracker.peak_bytes == simulate(bench.graph, schedule).peak_bytes
        assert module.run_counts[name] == 2
        assert tracker.num_calls["aten::add_.Tensor"] == len(sums)


def test_batch_norm_statistics_are_updated_once():
    """However often the norm runs; num_batches_tracked counts the two uses of the last block."""
    bench = Bench("resnet")
    norms = [op.name for op in bench.graph.ops if op.phase == "forward" and op.optional]
    assert len(norms) == 6
    names = []
    for op in bench.graph.ops:
        names.append(op.name)
        if op.name == "loss.grad":
            names += norms + norms
    bench.run(Schedule.from_names(names))
    norm = bench.model.blocks[0].norm1
    assert int(norm.num_batches_tracked) == 1
    assert int(bench.model.blocks[1].norm1.num_batches_tracked) == 2
    after = norm.running_mean.clone()
    bench.eager()
    assert torch.equal(after, norm.running_mean)


def test_memory_follows_the_simulation_run_by_run():
    """Not only at the peak: before each run, the live bytes are those that the runs leave."""
    bench = Bench("unet")
    schedule = random_schedule(np.random.default_rng(5), bench.graph)
    module = bench.captured.module(schedule)
    simulation = simulate(bench.graph, schedule)
    bench.reset()
    resident = [*bench.model.parameters(), *bench.model.buffers(), *bench.inputs]
    seen = []
    with StorageTracker(*resident) as tracker:
        module.observe(lambda run: seen.append((run, tracker.live_bytes)))
        module(*bench.inputs).backward()
    assert [run for run, _ in seen] == list(range(len(schedule)))
    # What is live before run k is what run k counts, less what it makes.
    instances = simulation._instances
    tensor, first, last = instances[0], instances[1], instances[2]
    sizes = bench.graph.arrays.tensor_bytes
    num_inputs = len(bench.graph.inputs)
    for run, live in seen[1:]:
        begun = (last >= run) & ((first < run) | (np.arange(first.size) < num_inputs))
        expected = bench.graph.static_bytes + int(sizes[tensor[begun]].sum())
        # autograd makes the gradient of the loss as it calls the backward half
        early = 4 if schedule.names[run] == "loss.grad" else 0
        assert live == expected + early, schedule.names[run]
