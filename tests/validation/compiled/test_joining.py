"""Neighbours joined: the same numbers, no more bytes, and only where it is quicker."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, captured_step, convolutional, gated, left_by  # noqa: E402
from schedsim.validation.capture.to_graph import op_calls, to_graph  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import FusedGroup, Groups  # noqa: E402
from schedsim.validation.compiled.joining import _Joiner, join_runs  # noqa: E402
from schedsim.validation.measure import StorageMeter  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402


def joined_step(make, spare_bytes, seconds=lambda name: 0.0 if "+" in name[1:] else 1.0):
    model, inputs, loss = make()
    captured, groups = captured_step(model, inputs, loss), Groups()
    program = fused(captured.program, groups)
    graph = to_graph(program, "fused", captured.graph.static_bytes)
    captured = replace(captured, program=program, graph=graph)
    found = []

    def measure(_, call):
        return (1.0 if call in program.calls else seconds(call.name)), 0

    def join(graph, runs):
        schedule = Schedule(graph.op_names, runs)
        limit = simulate(graph, schedule).peak_bytes - graph.static_bytes + spare_bytes
        found.append(join_runs(program, runs, limit, groups, measure))
        return found[-1]

    module = replace(captured, join=join).module(Schedule.store_all(graph))
    return model, inputs, loss, module, found[-1]


@pytest.mark.slow
@pytest.mark.parametrize("make", [gated, convolutional])
def test_joined_neighbours_compute_the_plain_step(uncompiled, make):
    model, inputs, loss, module, joined = joined_step(make, 0)
    assert joined.parts
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)
    assert set(module.run_counts.values()) == {1}


@pytest.mark.slow
def test_no_more_is_held_between_ops_than_before(uncompiled):
    """What outlives a run, whole groups counted as one op."""
    model, inputs, _, module, _ = joined_step(gated, 0)
    apart = joined_step(gated, 0, seconds=lambda _: 9.0)
    assert not apart[4].parts
    ends = []
    for one in (module, apart[3]):
        one(*inputs).backward()
        model.zero_grad()
        [reading] = StorageMeter().read(lambda one=one: one(*inputs))
        ends.append(reading.end_bytes)
    assert ends[0] <= ends[1]


@pytest.mark.slow
def test_where_bytes_are_short_fewer_are_joined(uncompiled):
    many, few = joined_step(gated, 10**9)[4], joined_step(gated, -(10**9))[4]
    assert many.parts
    assert not few.parts
    assert len(many.runs) < len(few.runs)


@pytest.mark.slow
def test_what_is_made_again_behind_its_reader_is_not_joined_with_it(uncompiled):
    """As by a repeat for another output of the group: its reader has read the earlier one."""
    captured, groups = captured_step(*gated()), Groups()
    program = fused(captured.program, groups)
    calls = [program.calls[i] for i in op_calls(program)]
    made = [{program.values[v].storage for v in call.outputs if v >= 0} for call in calls]
    pairs = [
        (k, reader)
        for reader, call in enumerate(calls)
        for k in range(reader)
        if made[k] & set(program.base_reads(call))
    ]
    assert pairs
    for k, reader in pairs:
        runs = [*range(reader + 1), k, *range(reader + 1, len(calls))]
        parts = join_runs(program, runs, 10**9, groups, lambda *_: (0.0, 0)).parts.values()
        found = [part[i : i + 2] for part in parts for i in range(len(part))]
        assert (reader, k) not in found


def test_what_is_not_quicker_stays_apart(uncompiled):
    joined = joined_step(gated, 10**9, seconds=lambda _: 100.0)[4]
    assert not joined.parts
    assert len(joined.program.calls) == len(set(map(id, joined.program.calls)))
    assert max(joined.runs) < len(op_calls(joined.program))


def test_what_inductor_cannot_compile_together_stays_apart(uncompiled):
    """Each part was compiled by itself, so that the step runs as before."""

    def fails(name):
        raise RuntimeError(f"no code for {name}")

    model, inputs, loss, module, joined = joined_step(gated, 10**9, seconds=fails)
    assert not joined.parts
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    assert_close(left_by(module, model, inputs), expected)


@pytest.mark.slow
def test_candidates_are_compiled_beside_each_other(uncompiled, monkeypatch):
    """One after another, each would wait for a compiler by itself."""
    events = []
    begin = FusedGroup.begin

    def noted(group):
        events.append("begun")
        return [*begin(group), lambda: events.append("awaited")]

    def seconds(name):
        if "+" in name[1:]:
            events.append("measured")
        return 9.0

    monkeypatch.setattr(FusedGroup, "begin", noted)
    joined_step(gated, 10**9, seconds)
    assert events.index("awaited") >= 2
    walks = "".join(event[0] for event in events).split("ma")
    assert len(walks) < events.count("begun") / 2
    assert events.index("measured") > events.index("awaited")


@pytest.mark.slow
def test_walks_join_what_one_after_another_would(uncompiled, monkeypatch):
    """Whatever the measurements say."""

    def seconds(name):
        return 0.5 + (sum(map(ord, name)) % 5) / 2 if "+" in name[1:] else 1.0

    def expanded():
        joined = joined_step(gated, 10**9, seconds)[4]
        return [joined.parts.get(run, (run,)) for run in joined.runs]

    found = expanded()
    ask = _Joiner._joined

    def at_once(self, begin, end):
        op = ask(self, begin, end)
        if op is None:
            self._measure_lacking()
            op = ask(self, begin, end)
        return op

    monkeypatch.setattr(_Joiner, "_joined", at_once)
    assert found == expanded()
    assert {len(runs) for runs in found} > {1}


def test_what_is_not_compiled_together_is_no_group_of_the_step(uncompiled, monkeypatch, recwarn):
    """Or a later compilation of the step's groups would say that it runs uncompiled."""
    model, inputs, loss = gated()
    captured, groups = captured_step(model, inputs, loss), Groups()
    program = fused(captured.program, groups)
    groups.compile()
    asked, runs = [], range(len(op_calls(program)))

    def fails(self, function):
        asked.append(self.key)
        raise RuntimeError("no code")

    monkeypatch.setattr(FusedGroup, "compiled_as", fails)
    for _ in range(2):
        assert not join_runs(program, runs, 10**9, groups, lambda *_: (0.0, 0)).parts
    assert asked
    assert len(asked) == len(set(asked))
    groups.compile()
    assert not [w for w in recwarn if "uncompiled" in str(w.message)]
