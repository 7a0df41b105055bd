"""Kernels that kernels call: linked into their caller unoptimised, and optimised once with it.

numba makes machine code of every function together with all functions that it calls, and then
inlines or compiles the same code once more into the caller: the work grows with the depth of calls.
Here only the kernel that Python calls becomes machine code; kernels inside it are linked to it as
they come from type inference. Compiling takes a third of the time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core.compiler import Compiler, CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.targetconfig import ConfigStack
from numba.core.typed_passes import NopythonRewrites, NopythonTypeInference
from numba.core.types.functions import BaseFunction

# This module uses internals of numba. With a version of numba on which it was not tested, kernels
# are compiled the usual way, which gives the same code some seconds later.
TRIED = ("0.68.",)


class _WithoutEngine:
    """A code generator that remembers environments while there is no machine code yet."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen
        self.environments: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        self.environments.append((name, environment))


def _leave_open(library: Any) -> None:
    """Let `library` be linked into others without being optimised or made executable."""

    def finish() -> None:
        library._finalize_dynamic_globals()
        library._finalized = True

    library._codegen = _WithoutEngine(library._codegen)
    library._optimize_final_module = lambda: None
    library._finalize_final_module = finish
    library.get_pointer_to_function = lambda name: library._ensure_finalized() or 0


def set_environments(library: Any) -> None:
    """Give the kernels joined into `library` the environments that they were compiled with."""
    waiting, seen = list(library._linking_libraries), set()
    while waiting:
        inner = waiting.pop()
        if id(inner) in seen or not isinstance(inner._codegen, _WithoutEngine):
            continue
        seen.add(id(inner))
        waiting += inner._linking_libraries
        for name, environment in inner._codegen.environments:
            if library._codegen._engine.get_global_value_address(name):
                library._codegen.set_env(name, environment)


@register_pass(mutates_CFG=False, analysis_only=False)
class _OpenLibrary(FunctionPass):  # type: ignore[misc]
    _name = "schedsim_open_library"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        state.library = state.targetctx.codegen().create_library(state.func_id.func_qualname)
        _leave_open(state.library)
        return True


class PlainCompiler(CompilerBase):  # type: ignore[misc]
    """numba's own passes, without the search for whole-array expressions: kernels have loops."""

    def define_pipelines(self) -> list[Any]:
        """One pipeline, without Python objects."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [row for row in passes.passes if row[0] is not NopythonRewrites]
        passes.finalize()
        return [passes]


class JoinedCompiler(PlainCompiler):
    """`PlainCompiler` that writes to an open library."""

    def define_pipelines(self) -> list[Any]:
        """One pipeline, without Python objects."""
        [passes] = super().define_pipelines()
        passes.add_pass_after(_OpenLibrary, NopythonTypeInference)
        passes.finalize()
        return [passes]


def _tried() -> bool:
    return bool(numba.__version__.startswith(TRIED))


def inner_compiler() -> type[Any]:
    """The compiler of kernels that other kernels call."""
    return JoinedCompiler if _tried() else Compiler


def outer_compiler() -> type[Any]:
    """The compiler of kernels that Python calls."""
    return PlainCompiler if _tried() else Compiler


@contextmanager
def sizes_remembered(context: Any) -> Iterator[None]:
    """Let `context` ask LLVM only once for the size of each type.

    numba asks for every variable of every kernel, and llvmlite answers each time by parsing a
    module made for the question: a thousand modules for the kernels of a first plan.
    """
    ask, known = context.get_abi_sizeof, dict[str, int]()

    def size(of_type: Any) -> int:
        text = str(of_type)
        if text not in known:
            known[text] = ask(of_type)
        return known[text]

    context.get_abi_sizeof = size
    try:
        yield
    finally:
        del context.get_abi_sizeof


@contextmanager
def calls_remembered() -> Iterator[None]:
    """Let numba look up once what an operator or a function of numpy does with given types.

    For each use of `+` or of an index it tries one rule after the other until one fits, and puts
    down in words why the others did not: a third of the time of compiling. What it finds depends on
    the types and on how the code around the use is compiled.
    """
    function_type: Any = BaseFunction
    ask = function_type.get_call_type
    known = dict[Any, Any]()

    def call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
        flags = ConfigStack.top_or_none()
        compiled_as = None if flags is None else flags.summary()
        key = (id(function), context, tuple(args), tuple(dict(kws).items()), compiled_as)
        found = known.get(key)
        if found is None:
            # Beside it the function, so that its id is not used again.
            found = known[key] = (ask(function, context, args, kws), function)
        return found[0]

    function_type.get_call_type = call_type
    try:
        yield
    finally:
        function_type.get_call_type = ask


@contextmanager
def no_collection() -> Iterator[None]:
    """Turn off garbage collection: the objects of a compiler live until it is done."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_busy = threading.local()


@contextmanager
def compiling_fast(context: Any) -> Iterator[None]:
    """All of it while a kernel is compiled, and those inside of it with it; under numba's lock."""
    if getattr(_busy, "inside", False) or not _tried():
        yield
        return
    _busy.inside = True
    try:
        with sizes_remembered(context), calls_remembered(), no_collection():
            yield
    finally:
        _busy.inside = False
