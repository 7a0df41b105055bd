"""Blocks whose parameters are sharded: what a schedule gathers, and when it lets go."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from chains import unit_chain
from replayed_blocks import recompute_everything
from schedsim.validation.block_level.block_program import make_program
from schedsim.validation.block_level.parts import sequential_parts
from schedsim.validation.block_level.sharded import Sharding
from torch import nn

from schedsim import Schedule


class State:
    """Of a sharded module without parameters."""

    _fsdp_param_group = None


class Module:
    """Counts how often it keeps its share alone."""

    def __init__(self) -> None:
        self.resharded = 0

    def reshard(self) -> None:
        self.resharded += 1

    def _get_fsdp_state(self) -> State:
        return State()


def sharding(*sizes: int) -> Sharding:
    """A module of so many bytes in each part; none where there are none."""
    return Sharding(tuple((Module(),) if size else () for size in sizes), (), sizes)


def program_of(schedule, chain):
    return make_program(chain, schedule, chain.num_stages)


def test_a_model_that_is_not_sharded_has_none():
    """Nothing is to be gathered."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert Sharding.of(model, sequential_parts(model)) is None


def test_store_all_gathers_twice_but_for_the_last_block():
    """Whose backward comes right after its forward only where there is no loss between them."""
    chain = unit_chain(3)
    found = sharding(10, 20, 40)
    total, least, number = found.gathers(program_of(Schedule.store_all(chain), chain))
    assert (total, least, number) == (140, 140, 6)
    note = found.note(program_of(Schedule.store_all(chain), chain))
    assert note == "gathers parameters 6 times a step, 140 B in all: no more"


def test_replays_gather_once_more_unless_their_backward_follows():
    """Each block: its forward, and its replay with the backward right behind it."""
    chain = unit_chain(3)
    found = sharding(10, 0, 40)
    program = program_of(recompute_everything(chain), chain)
    assert found.gathers(program) == (100, 100, 4)
    names = ["F0", "F1", "F2", "loss", "B2", "F0", "F1", "B1", "F0", "B0"]
    program = program_of(Schedule.from_names(names), chain)
    # F0 three times, its backward right behind the last; F2 and B2 apart by the loss.
    assert found.gathers(program) == (3 * 10 + 2 * 40, 100, 5)
    assert "10 B of it more than store-all does" in found.note(program)


def test_a_block_lets_go_unless_its_own_backward_follows():
    """Only after forwards, and only in blocks that gather."""
    chain = unit_chain(2)
    found = sharding(10, 0)
    runs = program_of(recompute_everything(chain), chain).runs
    for run, following in zip(runs, (*runs[1:], None), strict=True):
        found.after(run, following)
    (module,), nothing = found.modules
    assert nothing == ()
    assert module.resharded == 1  # after the first forward, not after the replay


def test_steps_whose_gradients_are_whole_pass_where_nothing_is_sharded():
    """No state says that it does not reduce."""
    sharding(1).check()
    sharding(1).begin_backward()
