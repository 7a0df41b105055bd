"""Kernels inside kernels: handed to the compiler as they are, optimised once, with their caller.

numba makes machine code of every function by itself, with all that the function calls, although
it is then inlined or compiled once more into its caller: work grows with the depth of calls. Here
only the kernel that Python calls becomes machine code; those inside it are joined to it as they
come from type inference. A third of the time of compiling is left.
"""

from __future__ import annotations

from typing import Any

from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.typed_passes import NopythonTypeInference


class _WithoutEngine:
    """A code generator that remembers environments, for whom there is no machine code yet."""

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


class JoinedCompiler(CompilerBase):  # type: ignore[misc]
    """numba's own passes, with an open library to write to."""

    def define_pipelines(self) -> list[Any]:
        """One pipeline, without Python objects."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_OpenLibrary, NopythonTypeInference)
        passes.finalize()
        return [passes]
