"""What `torch.compile` was given for a backend, called or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
import torch._dynamo.eval_frame
from torch import nn

from ..process_objects import objects_of, objects_within


def options_given(backend: Callable[..., Any]) -> list[Mapping[str, Any]]:
    """The options of all that `torch.compile` was given for `backend`.

    Dynamo keeps them where what was compiled is gone. O(objects of the process).
    """
    kind = torch._TorchCompileWrapper
    found = [it for it in objects_of(kind) if it.compiler_fn is backend]
    return [it.kwargs["options"] for it in found if "options" in it.kwargs]


def modules_given(backend: Callable[..., Any]) -> list[tuple[Mapping[str, Any], nn.Module]]:
    """The modules among it, by `torch.compile(module)` or `module.compile()`, with their options.

    Modules that a compiled function calls are not known. O(objects of the process).
    """
    kind = torch._dynamo.eval_frame.OptimizedModule
    found = list[tuple[Mapping[str, Any], nn.Module]]()
    for module in objects_within(nn.Module):
        its = vars(module)
        if isinstance(module, kind):
            given, callbacks = module._orig_mod, [module.dynamo_ctx.callback]
        else:
            given, callbacks = module, list(_in_closure(its.get("_compiled_call_impl")))
        options = [it for one in callbacks if (it := _options_for(backend, one)) is not None]
        found += [(one, given) for one in options]
    return found


def compilers_within(compiler: Any) -> list[Any]:
    """`compiler` and what it wraps, the function that a user gave last."""
    found = [compiler]
    for _ in range(8):
        inner = getattr(found[-1], "_torchdynamo_orig_backend", None)
        inner = inner or getattr(found[-1], "compiler_fn", None)
        if inner is None:
            break
        found.append(inner)
    return found


def options_in(compilers: Iterable[Any]) -> Mapping[str, Any] | None:
    """The options that a user gave for one of `compilers`; ``None`` without any."""
    for compiler in compilers:
        given = getattr(compiler, "kwargs", None)
        if isinstance(given, dict) and given.get("options"):
            found: Mapping[str, Any] = given["options"]
            return found
    return None


def _options_for(backend: Callable[..., Any], callback: Any) -> Mapping[str, Any] | None:
    compilers = compilers_within(callback)
    return options_in(compilers) if compilers[-1] is backend else None


def _in_closure(function: Any) -> Iterator[Any]:
    """What a compiled function keeps for Dynamo to call."""
    if isinstance(function, FunctionType):
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # an empty one
                continue
