"""The Python that a step runs: the names that it looks up, and the globals that it reads.

A step can depend on an attribute only where some code that it runs names that attribute. The code
is noted while the step runs once; attributes that it does not name may change freely.
"""

from __future__ import annotations

import dis
import gc
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType
from typing import Any

from ..torch_private.autograd_nodes import function_of

_ALSO = (
    "torch", "numpy", "schedsim", "builtins", "sympy", "mpmath", "networkx", "triton", "optree",
    "typing_extensions", "jinja2", "filelock", "fsspec", "scipy", "numba", "pytest", "_pytest",
    "pluggy", "coverage", "tqdm", "huggingface_hub", "safetensors", "tokenizers", "packaging",
)  # fmt: skip
# Read checkpoints, and run in no step. They keep tables of the weights of all models.
_LOADERS = frozenset(
    {"transformers.conversion_mapping", "transformers.core_model_loading", "transformers.utils.hub"}
)
_LIBRARY = frozenset({*_ALSO, *sys.stdlib_module_names}) - {"__main__"}
# Code with these names can look up attributes that it does not name.
_DYNAMIC = frozenset(
    {"getattr", "hasattr", "setattr", "__dict__", "vars", "eval", "exec", "attrgetter", "globals"}
)
_ENVIRONMENT = frozenset({"environ", "getenv"})
_CLOCK, _FILES = ("time",), ("io", "_io", "posix", "nt")
_OUTSIDE: dict[str, tuple[str, ...]] = {
    "open": _FILES, "listdir": _FILES, "stat": _FILES, "scandir": _FILES,
    "time": _CLOCK, "time_ns": _CLOCK, "monotonic": _CLOCK, "perf_counter": _CLOCK,
    "now": ("datetime",), "today": ("datetime", "date"),
}  # fmt: skip
"""Functions in C that ask what no guard sees, with the modules or classes that they are of."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OWN = globals()
_WORD = re.compile(r"[A-Za-z_]\w*")


def is_library(module: str | None) -> bool:
    """Whether `module` belongs to Python, torch or this package, whose globals do not change.

    Examples
    --------
    >>> is_library("torch.nn.functional"), is_library("my_models.net"), is_library("__main__")
    (True, False, False)
    """
    return module is not None and (module.partition(".")[0] in _LIBRARY or module in _LOADERS)


@dataclass(frozen=True)
class Reach:
    """The names that the code of a step can look up.

    Attributes
    ----------
    names
        Names of attributes; ``None`` stands for any name.
    scopes
        Globals of code outside of libraries, with the names that are read there.
    variables
        Words that may name variables of the environment, where such code reads any.
    """

    names: frozenset[str] | None = None
    scopes: tuple[tuple[dict[str, Any], frozenset[str]], ...] = ()
    variables: frozenset[str] = frozenset()

    def joined(self, other: Reach) -> Reach:
        """The names that either of the two can look up."""
        names = None
        if self.names is not None and other.names is not None:
            names = self.names | other.names
        scopes = (*self.scopes, *other.scopes)
        return Reach(names, scopes, self.variables | other.variables)


@dataclass
class CodeRun:
    """A context that notes the code which runs in it on this thread.

    In ``asked`` it notes where code outside of libraries asks what lies outside of Python: files
    and clocks.

    Code that the cycle collector calls, finalizers and ``gc.callbacks``, is not noted: it may run
    at any allocation, in any step.
    """

    codes: dict[CodeType, dict[str, Any]] = field(default_factory=dict)
    asked: dict[str, None] = field(default_factory=dict)
    _before: Any = None
    _thread: int = 0
    _collecting: bool = False

    def __enter__(self) -> CodeRun:
        self._thread, self._collecting = threading.get_ident(), False
        gc.callbacks.insert(0, self._first_callback)
        gc.callbacks.append(self._last_callback)
        self._before = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is None or callable(self._before):
            sys.setprofile(self._before)
        else:  # a profiler in C, such as cProfile's, cannot be called as a function
            sys.setprofile(None)
            self._before.enable()
        gc.callbacks.remove(self._first_callback)
        gc.callbacks.remove(self._last_callback)

    # The two callbacks enclose all that runs in a collection. Another thread may collect meanwhile.
    def _first_callback(self, phase: str, _info: object) -> None:
        if phase == "start" and threading.get_ident() == self._thread:
            self._collecting = True

    def _last_callback(self, phase: str, _info: object) -> None:
        if phase == "stop" and threading.get_ident() == self._thread:
            self._collecting = False

    def _note(self, frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__name__", "") in _OUTSIDE:
            self._note_outside(frame, called)
        if event != "call" or self._collecting or frame.f_globals is _OWN:
            return
        code = frame.f_code
        if code in self.codes:
            return
        self.codes[code] = frame.f_globals
        if code.co_name == "register_hook" and frame.f_globals.get("__name__") == "torch._tensor":
            self.note_function(frame.f_locals.get("hook"))
        # The backward of an autograd function runs later, if ever: it counts with its forward.
        if code.co_name in ("forward", "setup_context") and code.co_argcount and code.co_varnames:
            owner = function_of(frame.f_locals.get(code.co_varnames[0]))
            for name in ("backward", "vjp", "setup_context"):
                method = getattr(owner, name, None)
                if isinstance(method, FunctionType):
                    self.codes.setdefault(method.__code__, method.__globals__)

    def _note_outside(self, frame: Any, called: Any) -> None:
        of = getattr(called, "__self__", None)
        own = of.__name__ if isinstance(of, type) else getattr(called, "__module__", None)
        while frame is not None and frame.f_globals.get("__name__") == "pathlib":
            frame = frame.f_back
        if own in _OUTSIDE[called.__name__] and frame is not None and not self._collecting:
            module = frame.f_globals.get("__name__")
            if not is_library(module):
                code = frame.f_code
                self.asked[f"{code.co_name} in {module}, line {frame.f_lineno}"] = None

    def note_function(self, function: Any) -> None:
        """Note a function, method or callable object that a backward may call later."""
        while isinstance(function, partial):
            function = function.func
        if callable(function) and not isinstance(function, FunctionType | MethodType):
            function = type(function).__call__
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType):
            self.codes.setdefault(function.__code__, function.__globals__)

    def reach(self) -> Reach:
        """The names that the noted code can look up; O(size of the code)."""
        names: set[str] = set()
        variables: set[str] = set()
        dynamic = False
        scopes: dict[int, tuple[dict[str, Any], set[str]]] = {}
        pending = [(code, scope) for code, scope in self.codes.items()]
        seen = set(self.codes)
        while pending:
            code, scope = pending.pop()
            library = is_library(scope.get("__name__"))
            for one in nested(code):
                names.update(one.co_names)
                names.update(_words(one))
                if library:
                    continue
                dynamic = dynamic or not _DYNAMIC.isdisjoint(one.co_names)
                reads_environment = not _ENVIRONMENT.isdisjoint(one.co_names)
                if reads_environment:
                    variables |= _words(one)
                read = scopes.setdefault(id(scope), (scope, set()))[1]
                for name in global_names(one):
                    read.add(name)
                    called = scope.get(name)
                    if isinstance(called, str) and reads_environment:
                        variables.add(called)
                    # Code that a hook or a backward calls may not have run yet.
                    if isinstance(called, FunctionType) and called.__code__ not in seen:
                        seen.add(called.__code__)
                        pending.append((called.__code__, called.__globals__))
        found = tuple((scope, frozenset(read)) for scope, read in scopes.values())
        return Reach(None if dynamic else frozenset(names), found, frozenset(variables))


def static_reach(roots: Iterable[Any]) -> Reach:
    """The names that the code of `roots` may look up, found without running it: rather too many.

    Roots are modules with all their submodules, functions, methods and other callables. Of their
    methods, those count whose names the code names.
    """
    found = CodeRun()
    classes: dict[type, None] = {}
    for root in roots:
        parts = root.modules() if hasattr(root, "modules") else (root,)
        for part in parts:
            if isinstance(part, MethodType):
                classes.update(dict.fromkeys(type(part.__self__).__mro__))
                part = part.__func__
            if isinstance(part, FunctionType):
                found.codes[part.__code__] = part.__globals__
                continue
            classes.update(dict.fromkeys(type(part).__mro__))
            for value in getattr(part, "__dict__", {}).values():
                # A function that an instance holds, such as an activation that was passed in.
                if isinstance(value, FunctionType) and not is_library(value.__module__):
                    found.codes[value.__code__] = value.__globals__
            for hooks in _HOOKS:
                for hook in getattr(part, hooks, {}).values():
                    found.note_function(hook)
    methods = [
        (name, function)
        for kind in classes
        for name, function in vars(kind).items()
        if isinstance(function, FunctionType)
        and (not is_library(kind.__module__) or name == "forward")
    ]
    named = {"forward", "__call__"}
    while True:
        before = len(found.codes)
        for name, function in methods:
            if name in named:
                found.codes[function.__code__] = function.__globals__
        reach = found.reach()
        named |= reach.names or {name for name, _ in methods}
        if len(found.codes) == before:
            return reach


Methods = dict[tuple[type, str], Any]
"""Class and name -> the function that the class itself holds under that name."""


def methods_of(model: Any) -> Methods:
    """The methods that a forward of `model` may run, by the classes of its modules.

    Of the classes of libraries, ``forward`` counts alone.
    """
    kinds = {kind for part in model.modules() for kind in type(part).__mro__}
    return {
        (kind, name): value
        for kind in kinds
        for name, value in vars(kind).items()
        if name == "forward"
        or (isinstance(value, FunctionType) and not is_library(kind.__module__))
    }


def changed_methods(known: Methods) -> tuple[Any, ...]:
    """Those that are no longer as `known`: each with what is in its place. O(methods)."""
    return tuple(
        (kind, name, vars(kind).get(name))
        for (kind, name), value in known.items()
        if kind.__dict__.get(name) is not value
    )


def nested(code: CodeType) -> Iterator[CodeType]:
    """`code`, and the functions and classes defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


@lru_cache(maxsize=8192)  # reading instructions takes longer than all else that a reach does
def global_names(code: CodeType) -> frozenset[str]:
    """The names that `code` reads as globals.

    Examples
    --------
    >>> sorted(global_names((lambda x: len(x) + x.size).__code__))
    ['len']
    """
    kinds = ("LOAD_GLOBAL", "LOAD_NAME")
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in kinds)


def _words(code: CodeType) -> set[str]:
    """Names in the strings of `code`, such as in ``getattr(self, "tau")``."""
    strings = [c for c in code.co_consts if isinstance(c, str) and len(c) < 200]
    return {word for text in strings for word in _WORD.findall(text)}
