"""Cheap values that backward computes again."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fused_steps import captured_step, convolutional, gated  # noqa: E402
from schedsim.validation.compiled.clusters import StorageReaders  # noqa: E402
from schedsim.validation.compiled.decompose import decompose  # noqa: E402
from schedsim.validation.compiled.inline import inline_cheap  # noqa: E402


def saved(program):
    """Storages made before the hand-over to autograd and read after it."""
    reading = StorageReaders(program)
    return {
        storage
        for storage, maker in reading.maker.items()
        if maker < program.seed and any(r > program.seed for r in reading.readers.get(storage, ()))
    }


def size_of(program, storages):
    return sum(program.storages[s].size_bytes for s in storages)


def test_an_activation_is_not_saved_beside_its_argument():
    """The backward of silu(a) * b reads a and b; silu(a) follows from a."""
    program = decompose(captured_step(*gated(1)).program)
    before = saved(program)
    inline_cheap(program)
    after = saved(program)
    assert after < before
    assert size_of(program, before) - size_of(program, after) >= 32 * 32 * 4


@pytest.mark.parametrize("make", [gated, convolutional])
def test_nothing_more_is_saved(make):
    program = decompose(captured_step(*make()).program)
    before = saved(program)
    inline_cheap(program)
    assert saved(program) <= before


def test_makers_are_known_by_their_places():
    program = decompose(captured_step(*gated()).program)
    inline_cheap(program)
    for i, call in enumerate(program.calls):
        for v in call.outputs:
            assert v < 0 or program.values[v].call == i
            if v >= 0 and not call.is_view:
                assert program.storages[program.values[v].storage].call == i
