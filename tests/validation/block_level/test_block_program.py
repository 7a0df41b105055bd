"""A schedule made ready to run: who keeps a bundle, and what dies when."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from chains import random_chain, unit_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from schedsim.validation.block_level.block_program import _parsed, make_program
from small_models import random_schedule
from tiers import examples

from schedsim import InvalidScheduleError, Schedule


def some_chain(rng, num):
    """With bundles at every stage: the saved bytes are more than the output's."""
    from dataclasses import replace

    chain = random_chain(rng, num)
    stages = [replace(s, saved_bytes=s.output_bytes + 1) for s in chain.stages]
    return replace(chain, stages=tuple(stages))


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 6))
def test_everything_is_there_when_it_is_read_and_gone_after_its_last_reader(seed, num):
    """By playing the runs: values, bundles and gradients, of which none is left in the end."""
    rng = np.random.default_rng(seed)
    chain = some_chain(rng, num)
    program = make_program(chain, random_schedule(rng, chain), num)
    there = {("a", 0, -1)}
    for run in program.runs:
        i = run.index
        reads = {("a", i, -1)}
        writes = set()
        if run.kind == "F":
            writes = {("a", i + 1, -1)} | ({("r", i + 1, -1)} if run.saves else set())
        elif run.kind == "loss":
            writes = {("d", num, num)}
        else:
            reads |= {("r", i + 1, -1), ("a", i + 1, -1)}
            reads |= {t for t in there if t[0] == "d" and t[1] == i + 1}
            assert any(t[0] == "d" for t in reads)
            writes = {("d", i, i)} if i else set()
        assert reads <= there, run.name
        there |= writes
        there -= set(run.frees)
    assert there == set()


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 6))
def test_the_last_forward_before_a_backward_keeps_its_bundle(seed, num):
    """And no other; first and last runs of each op are marked."""
    rng = np.random.default_rng(seed)
    chain = some_chain(rng, num)
    schedule = random_schedule(rng, chain)
    program = make_program(chain, schedule, num)
    names = list(schedule.names)
    assert [run.name for run in program.runs] == names
    assert program.runs[program.loss_run].name == "loss"
    for k, run in enumerate(program.runs):
        assert run.first == (names.index(run.name) == k)
        assert run.last == (run.name not in names[k + 1 :])
        if run.kind == "F":
            behind = names[k + 1 :]
            backward = f"B{run.index}"
            last = run.name not in behind[: behind.index(backward)] if backward in behind else False
            assert run.saves == last


def test_what_adds_gradients_twice_is_refused():
    """With the place, and what may be repeated."""
    chain = unit_chain(2)
    names = ["F0", "F1", "loss", "B1", "F0", "F1", "loss", "B1", "B0"]
    with pytest.raises(
        InvalidScheduleError, match=r"schedule\[6\]: loss runs a second time"
    ) as caught:
        make_program(chain, Schedule.from_names(names), 2)
    assert "forward ops alone" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("a3", ("a", 3, -1)),
        ("r12", ("r", 12, -1)),
        ("d2", ("d", 2, 2)),
        ("d5.loss", ("d", 5, 9)),
        ("d4.1", ("d", 4, 1)),
        ("a7@host", ("a@", 7, -1)),
        ("r7@host", ("r@", 7, -1)),
    ],
)
def test_names_of_tensors_are_read(name, want):
    """Names of values, bundles, gradients by their giver, and copies in host memory."""
    assert _parsed(name, 9) == want


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**9), num=st.integers(1, 6))
def test_what_is_read_stays_where_nothing_frees_it_before_the_backward(seed, num):
    """By the frees of the runs between a forward with a bundle and its backward."""
    rng = np.random.default_rng(seed)
    chain = some_chain(rng, num)
    program = make_program(chain, random_schedule(rng, chain), num)
    kinds = [(run.kind, run.index) for run in program.runs]
    for k, run in enumerate(program.runs):
        if not run.saves:
            assert not run.stays
            continue
        until = kinds.index(("B", run.index), k)
        between = program.runs[k:until]
        assert run.stays == all(("a", run.index, -1) not in other.frees for other in between)
