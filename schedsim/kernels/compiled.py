"""How kernels are compiled: on the first call, once, for the types of their annotations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import FunctionType
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils, event
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    NativeValue,
    infer_getattr,
    lower_getattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from .cached import cache_where_possible, compiled_by_one_of_all
from .joined import (
    compiling_fast,
    inner_compiler,
    outer_compiler,
    set_environments,
)
from .notice import CompilingNotice
from .own_warnings import filters_left_alone
from .record import Layout, Record, layout_of, layout_of_record, remembered

Function = TypeVar("Function", bound=Callable[..., Any])

Result = TypeVar("Result")

MOST_PLAIN_STEPS = 40_000
"""Steps of a kernel that Python runs before the kernel is compiled: some tenths of a second."""

_WORD = ir.IntType(64)


class RecordType(types.Type):  # type: ignore[misc]
    """A pointer to the words of a record; the type's name holds the layout, so caches see
    changes."""

    def __init__(self, record: type[Record]) -> None:
        self.record = record
        described = ", ".join(f"{name}: {_type_of(it)}" for name, it in layout_of_record(record))
        super().__init__(name=f"{record.__module__}.{record.__qualname__}({described})")


@remembered
def _type_of(layout: Layout | type[Record]) -> Any:
    if isinstance(layout, type):
        return RecordType(layout)
    scalar = {"bool": types.boolean}.get(layout.dtype) or getattr(types, layout.dtype)
    return types.Array(scalar, layout.num_axes, "C") if layout.num_axes else scalar


@typeof_impl.register(Record)  # type: ignore[untyped-decorator]
def _typeof_record(value: Record, _context: Any) -> Any:
    return _type_of(type(value))


@register_model(RecordType)
class _RecordModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: RecordType) -> None:
        super().__init__(manager, kind, _WORD.as_pointer())


@unbox(RecordType)  # type: ignore[untyped-decorator]
def _unbox_record(_kind: RecordType, value: Any, c: Any) -> Any:
    address = c.pyapi.object_getattr_string(value, "address")
    found = cgutils.alloca_once_value(c.builder, cgutils.get_null_value(_WORD.as_pointer()))
    # null if a field does not fit the layout
    with c.builder.if_then(cgutils.is_not_null(c.builder, address)):
        number = c.pyapi.long_as_voidptr(address)
        c.pyapi.decref(address)
        c.builder.store(c.builder.bitcast(number, _WORD.as_pointer()), found)
    is_error = cgutils.is_null(c.builder, address)
    return NativeValue(c.builder.load(found), is_error=is_error)


@infer_getattr
class _RecordFields(AttributeTemplate):  # type: ignore[misc]
    key = RecordType

    def generic_resolve(self, kind: RecordType, name: str) -> Any:
        found = dict(layout_of_record(kind.record)).get(name)
        return None if found is None else _type_of(found)


@lower_getattr_generic(RecordType)  # type: ignore[untyped-decorator]
def _lower_field(context: Any, builder: Any, kind: RecordType, value: Any, name: str) -> Any:
    """Load the words of a field. They never change, so LLVM may move the loads out of loops."""
    at = 0
    for other, layout in layout_of_record(kind.record):
        if other == name:
            break
        at += 1 + (0 if isinstance(layout, type) else layout.num_axes)

    def word(offset: int, of_type: Any) -> Any:
        place = builder.gep(value, [ir.Constant(ir.IntType(32), at + offset)])
        loaded = builder.load(builder.bitcast(place, of_type.as_pointer()))
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if isinstance(layout, type):
        return word(0, _WORD.as_pointer())
    kind_of_field = _type_of(layout)
    if not layout.num_axes:
        if layout.dtype == "bool":
            return builder.icmp_unsigned("!=", word(0, _WORD), ir.Constant(_WORD, 0))
        return word(0, context.get_value_type(kind_of_field))
    # Built from values: a structure in memory would take a dozen more instructions, which every
    # pass of the compiler would handle for each field that a kernel reads.
    item_type = context.get_data_type(kind_of_field.dtype)
    item_bytes = ir.Constant(_WORD, np.dtype(layout.dtype).itemsize)
    shape = [word(1 + axis, _WORD) for axis in range(layout.num_axes)]
    strides = [item_bytes]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    parts = {
        "nitems": shape[0] if len(shape) == 1 else builder.mul(shape[0], shape[1]),
        "itemsize": item_bytes,
        "data": word(0, item_type.as_pointer()),
        "shape": cgutils.pack_array(builder, shape),
        "strides": cgutils.pack_array(builder, strides),
    }
    model = context.data_model_manager[kind_of_field]
    array = ir.Constant(model.get_value_type(), None)  # no owner: neither object nor parent
    for part, it in parts.items():
        array = builder.insert_value(array, it, model.get_field_position(part))
    return array


class _OneVariant(CPUDispatcher):  # type: ignore[misc]
    """A kernel that is compiled only for the types of its annotations.

    Each specialisation of a kernel costs up to seconds; numba would make one for every combination
    of argument types that it meets.
    """

    declared: tuple[Any, ...] = ()

    def compile(self, given: Any) -> Any:
        """Compile or load the single specialisation; arguments of other types are converted."""
        kinds = self.declared or _argument_types(self.py_func)
        with global_compiler_lock:  # two threads may make the first call at the same time
            if self._can_compile:
                with (
                    compiled_by_one_of_all(self),
                    compiling_fast(self.targetctx),
                    filters_left_alone(),
                ):
                    super().compile(kinds)  # loads what another process has made meanwhile
                self.disable_compile()
        if len(given) != len(kinds) or any(
            self.typingctx.can_convert(one, other) is None
            for one, other in zip(given, kinds, strict=True)
        ):
            raise TypeError(f"{self.py_func.__name__} takes {kinds}, not {tuple(given)}")
        return self.overloads[kinds].entry_point


class _Kernel(_OneVariant):
    """A kernel that Python calls; kernels that call it get a twin without machine code."""

    twin: _OneVariant
    looked = False
    num_plain_steps = 0

    def at_hand(self) -> bool:
        """Whether machine code exists, in memory or in the cache."""
        if not self.overloads and not self.looked:
            with global_compiler_lock:
                self.looked = True
                kinds = self.declared or _argument_types(self.py_func)
                if self._cache.load_overload(kinds, self.targetctx) is not None:
                    self.compile(kinds)
        return bool(self.overloads)

    @cached_property
    def in_python(self) -> Callable[..., Any]:
        """The same code, and that of the kernels that it calls, run by Python."""
        function = self.py_func
        names = {**function.__globals__}
        for name in function.__code__.co_names:
            if isinstance(names.get(name), _Kernel):
                names[name] = names[name].in_python
        return FunctionType(
            function.__code__,
            names,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )

    def add_overload(self, compiled: Any) -> None:
        """numba calls this when the machine code exists."""
        set_environments(compiled.library)
        super().add_overload(compiled)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The types of the twin, which numba asks for while it compiles a caller."""
        self.twin.declared = self.declared
        return self.twin.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """The code of the twin, which the caller links."""
        return self.twin.get_overload(sig)


def _argument_types(function: Callable[..., Any]) -> tuple[Any, ...]:
    hints = get_type_hints(function, include_extras=True)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    found = []
    for name in names:
        layout = layout_of(hints[name])
        if layout is None:
            raise TypeError(f"{function.__name__}: no kernel takes {name}: {hints[name]}")
        found.append(_type_of(layout))
    return tuple(found)


def kernel_for(*hints: Any) -> Callable[[Function], Function]:
    """Like `kernel`, for the types of `hints` instead of the annotations."""
    kinds = tuple(_type_of(cast("Layout | type[Record]", layout_of(hint))) for hint in hints)

    def compile_later(function: Function) -> Function:
        compiled = kernel(function)
        if isinstance(compiled, _Kernel):
            compiled.declared = kinds
        return compiled

    return compile_later


def kernel(function: Function) -> Function:
    """Compile `function` on its first call, for the types of its annotations, and cache it.

    The kernel runs without Python's global lock. Kernels that call kernels compile fast if the
    arguments are records (`schedsim.kernels.record`), arrays annotated with an alias of that
    module, and numbers.
    """
    return kernel_with()(function)


def kernel_with(**flags: Any) -> Callable[[Function], Function]:
    """Like `kernel`, with flags of numba's own."""
    options = {"nopython": True, "nogil": True, "no_cfunc_wrapper": True, **flags}
    inside = {**options, "no_cpython_wrapper": True}

    def compile_later(function: Function) -> Function:
        if config.DISABLE_JIT:
            return function
        compiled = _Kernel(
            function, locals={}, targetoptions=options, pipeline_class=outer_compiler()
        )
        cache_where_possible(compiled)
        compiled.twin = _OneVariant(
            function, locals={}, targetoptions=inside, pipeline_class=inner_compiler()
        )
        return cast("Function", compiled)

    return compile_later


def at_hand(function: Callable[..., Any]) -> bool:
    """Whether a call of this kernel would run without waiting for the compiler."""
    return not isinstance(function, _Kernel) or function.at_hand()


def in_python(function: Function) -> Function:
    """The kernel's own source, run by Python."""
    return cast("Function", function.in_python) if isinstance(function, _Kernel) else function


def run(function: Callable[..., Result], num_steps: int, *arguments: Any) -> Result:
    """Call a kernel; a short call runs in Python if the kernel is not compiled yet.

    Compiling takes a second, a step in Python some microseconds. So while a process has made few
    steps, by its own count, and there is no machine code yet, Python runs them: the same source on
    the same numbers. A user who plans one small chain never waits for the compiler.
    """
    if isinstance(function, _Kernel) and not function.at_hand():
        function.num_plain_steps += num_steps
        if function.num_plain_steps <= MOST_PLAIN_STEPS:
            quick = [_quick_to_read(it) for it in arguments]
            return cast("Result", function.in_python(*quick))
    return function(*arguments)


def _quick_to_read(argument: Any) -> Any:
    return argument.lists if isinstance(argument, Record) and argument.only_read else argument


event.register("numba:compile", CompilingNotice())
