"""How numba's compiler is hurried while a kernel is compiled, and left as it was."""

from __future__ import annotations

import contextlib
import gc

import numpy as np
import pytest
from numba.core.compiler import Flags
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.core.targetconfig import ConfigStack
from numba.core.types.functions import BaseFunction

import schedsim.kernels.joined as joined
from schedsim.kernels.compiled import kernel
from schedsim.kernels.record import Ints


class Context:
    """Counts how often the size of a type is asked for."""

    num_asked = 0

    def get_abi_sizeof(self, of_type):
        self.num_asked += 1
        return len(of_type)


def test_the_size_of_a_type_is_asked_once():
    """And not remembered any longer than the compilation takes."""
    context = Context()
    with joined.compiling_fast(context), joined.compiling_fast(context):
        assert [context.get_abi_sizeof(name) for name in ("i8", "i16", "i8", "i8")] == [2, 3, 2, 2]
        assert context.num_asked == 2
    context.get_abi_sizeof("i8")
    assert context.num_asked == 3


def test_what_an_operator_does_with_types_is_looked_up_once(monkeypatch):
    """Per operator, types and flags; a failure is looked up, and raised, again."""
    asked = []

    def looked_up(function, context, args, kws):
        asked.append(args)
        if "no" in args:
            raise TypingError("no")
        return f"of {args}"

    monkeypatch.setattr(BaseFunction, "get_call_type", looked_up)
    with joined.compiling_fast(Context()):
        look_up = BaseFunction.get_call_type
        assert look_up("add", None, ("i8", "i8"), {}) == "of ('i8', 'i8')"
        assert look_up("add", None, ("i8", "i8"), ()) == "of ('i8', 'i8')"
        look_up("add", None, ("i8", "f8"), {})
        look_up("other", None, ("i8", "i8"), {})
        flags = Flags()
        flags.boundscheck = True
        with ConfigStack().enter(flags):
            look_up("add", None, ("i8", "i8"), {})
        for _ in range(2):
            with pytest.raises(TypingError):
                look_up("add", None, ("no", "i8"), {})
    assert len(asked) == 4 + 2
    assert BaseFunction.get_call_type is looked_up


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_as_before(enabled):
    """Also after a compilation that fails, and one inside of it."""
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with contextlib.suppress(KeyError), joined.compiling_fast(Context()):
            with joined.compiling_fast(Context()):
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_nothing_of_numba_stays_changed_after_a_kernel_was_compiled():
    """Its context is shared with whatever else the process compiles."""

    @kernel
    def inside(values: Ints, at: int) -> int:
        return values[at] + 1

    @kernel
    def outside(values: Ints) -> int:
        return inside(values, 2) * inside(values, 0)

    assert outside(np.array([1, 5, 4], np.int64)) == 10
    assert "get_abi_sizeof" not in vars(cpu_target.target_context)
    assert gc.isenabled()
