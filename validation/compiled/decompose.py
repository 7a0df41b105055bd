"""A program whose ops are decomposed as inductor decomposes them, before they are fused."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch

from ..capture.dropout import as_traced
from ..capture.effects import order_draws
from ..capture.program import (
    Call,
    Program,
    Ref,
    Storage,
    Value,
    empty_of,
    map_refs,
    refs,
    same_strides,
)
from ..costs.signature import signature
from ..torch_private import inductor_calls as inductor
from ..torch_private.fake_tensors import fake_mode
from ..torch_private.grouped_products import grouped_products
from ..torch_private.op_modes import OpOverload, schema_of
from ..torch_private.storage_refs import storage_key
from .constant_scatter import scatters_as_loops
from .fusible import HEAVY, fusible_target
from .small_draws import keep_small_draws

aten = torch.ops.aten
_DRAWS = {aten.rand.default: "rand", aten.randn.default: "randn", aten.randint.low: "randint"}


def decompose(program: Program) -> Program:
    """`program` with its ops decomposed as in inductor, where the parts can be fused.

    Random numbers of dropout come from seeds, one for each dropout, that are all drawn once, before
    the first of them is needed: a repeated run gets the same numbers without a generator's state.
    A forward that calls a recurrent layer of torch draws as eager does, because torch.compile
    leaves it to eager; what follows has seeds that are drawn behind it.
    Ops that inductor would not fuse are left unchanged. O(size of the program), and one trace for
    each distinct op.
    """
    with grouped_products():
        return _Decomposer(program).decompose()


class _Decomposer:
    def __init__(self, program: Program) -> None:
        self.old = program
        self.mode = fake_mode()
        self.new = replace(
            program,
            values=[replace(value) for value in program.values],
            storages=[replace(storage) for storage in program.storages],
            calls=[],
            gradients=dict(program.gradients),
            input_gradients=dict(program.input_gradients),
        )
        self.recurrent = _frames_of_recurrence(program)
        self.known: dict[tuple[str, tuple[int, ...]], torch.fx.Graph | None] = {}
        self.is_storage: dict[int, int] = {}  # old storage -> new storage of which it is a part
        self.moved: dict[int, int] = {}  # old call -> last of its parts
        self.num_draws = self.num_seeds = 0
        self.seeds = -1  # value
        self.drawing: Call | None = None
        self.device = program.values[program.outputs[0]].device

    def decompose(self) -> Program:
        old, new = self.old, self.new
        for index, traced in enumerate(old.calls):
            traced = self._unordered(traced)
            call = as_traced(old, traced)
            is_eager = self._draws_as_eager(traced)
            graph = None if index == old.seed or is_eager else self._parts(call)
            if is_eager:
                self._end_seeds()
            if graph is None or not self._inline(call, graph):
                self._keep(traced)
            self.moved[index] = len(new.calls) - 1
            if index == old.seed:
                new.seed = len(new.calls) - 1
        self._fill_seeds()
        for value in new.values:
            value.storage = self._storage(value.storage)
        order_draws(new)
        keep_small_draws(new)
        return new

    def _draws_as_eager(self, call: Call) -> bool:
        """Whether torch.compile leaves this draw to eager, with all of a recurrent layer's frame.

        Dropout between the layers of one recurrent module is among these. A setting of inductor's
        leaves all draws to eager.
        """
        if call.random and inductor.draws_as_eager():
            return True
        places = call.module, call.module.rpartition(".")[0]
        return call.random and not self.recurrent.isdisjoint(places)

    def _unordered(self, call: Call) -> Call:
        """`call` without the tokens that keep draws in order: numbers from seeds need none."""
        if not (call.random and call.tokens):
            return call
        return replace(call, tokens=tuple(t for t in call.tokens if not self.old.calls[t].random))

    # -- parts of a call --------------------------------------------------------------------------

    def _parts(self, call: Call) -> torch.fx.Graph | None:
        if call.is_view or call.tokens or not call.outputs:
            return None
        if not isinstance(call.target, OpOverload):
            return None
        given = list(refs((call.args, call.kwargs)))
        # A trace has an argument for each distinct tensor: `x * x` is no trace of `x * y`.
        key = signature(self.old, call), tuple(map(given.index, given))
        if key not in self.known:
            self.known[key] = self._trace(call)
        return self.known[key]

    def _trace(self, call: Call) -> torch.fx.Graph | None:
        arguments = list(dict.fromkeys(refs((call.args, call.kwargs))))
        at = {value: position for position, value in enumerate(arguments)}

        def run(*given: torch.Tensor) -> Any:
            args = map_refs(call.args, lambda v: given[at[v]])
            kwargs = map_refs(call.kwargs, lambda v: given[at[v]])
            return _as_meant(self.old, call, call.target(*args, **kwargs))

        with self.mode:
            examples = [empty_of(self.old.values[value]) for value in arguments]
        try:
            graph = inductor.traced(run, examples, self.mode)
        except (RuntimeError, TypeError, NotImplementedError, AssertionError):
            return None
        scatters_as_loops(graph, self.mode)
        return graph if self._fits(call, graph) else None

    def _fits(self, call: Call, graph: torch.fx.Graph) -> bool:
        """Whether the parts can be run or fused, and return tensors of the old layout."""
        nodes = [node for node in graph.nodes if node.op == "call_function"]
        if any(node.op == "get_attr" for node in graph.nodes):
            return False
        kinds = []
        for node in nodes:
            target = node.target
            if target is operator.getitem or target in _DRAWS:
                continue
            if not isinstance(target, OpOverload) or schema_of(target).is_mutable:
                return False
            if any(isinstance(leaf, torch.SymInt) for leaf in _leaves(node.meta.get("val"))):
                return False
            if torch.Tag.nondeterministic_seeded in target.tags:
                return False
            kinds.append(fusible_target(target) or _is_view(node) or target in HEAVY)
        if not all(kinds) or not nodes:
            return False
        draws = any(node.target in _DRAWS for node in nodes)
        if call.random and not draws:
            return False
        output = next(node for node in graph.nodes if node.op == "output").args[0]
        made = list(output) if isinstance(output, tuple | list) else [output]
        if len(made) < len(call.outputs):
            return False
        given = {id(n) for n in graph.nodes if n.op == "placeholder"}
        storages = [storage_key(n.meta["val"]) for n in graph.nodes if n.op == "placeholder"]
        for value, node in zip(call.outputs, made, strict=False):
            if value < 0:
                continue
            if not isinstance(node, torch.fx.Node) or id(node) in given:
                return False
            fake, meant = node.meta["val"], self.old.values[value]
            if storage_key(fake) in storages:
                return False
            if tuple(fake.shape) != meant.shape or fake.dtype != meant.dtype:
                return False
            if not same_strides(meant.shape, fake.stride(), meant.stride):
                return False
        return True

    def _inline(self, call: Call, graph: torch.fx.Graph) -> bool:
        new = self.new
        arguments = list(dict.fromkeys(refs((call.args, call.kwargs))))
        became: dict[torch.fx.Node, Any] = {}
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        storage_of: dict[int, int] = {}  # storage of the trace -> storage of the new program
        for node, value in zip(placeholders, arguments, strict=True):
            became[node] = Ref(value)
            storage_of[storage_key(node.meta["val"])] = new.values[value].storage
        output = next(node for node in graph.nodes if node.op == "output").args[0]
        made = list(output) if isinstance(output, tuple | list) else [output]
        value_of: dict[torch.fx.Node, int] = {}
        first = len(new.calls)
        for value, node in zip(call.outputs, made, strict=False):
            if value >= 0:
                if node in value_of:
                    return False  # one tensor is two outputs
                value_of[node] = value
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            if node.target is operator.getitem:
                source, position = node.args
                held = became[source][position]
                became[node] = held
                continue
            self._part(call, node, became, storage_of, value_of)
        if call.lean is not None:
            read = set(arguments) - set(refs(call.lean[1]))
            self._read_once(new.calls[first:], read)
        return True

    def _read_once(self, parts: list[Call], changing: set[int]) -> None:
        """Let parts run once that read values which change during the step, as statistics do."""
        for part in parts:
            if changing & set(refs((part.args, part.kwargs))):
                if part.is_view:
                    changing.update(v for v in part.outputs if v >= 0)
                else:
                    part.once = True

    def _part(
        self,
        call: Call,
        node: torch.fx.Node,
        became: dict[torch.fx.Node, Any],
        storage_of: dict[int, int],
        value_of: dict[torch.fx.Node, int],
    ) -> None:
        new, index = self.new, len(self.new.calls)
        target: Any = node.target
        args = torch.fx.map_arg(node.args, lambda n: became[n])
        kwargs = torch.fx.map_arg(dict(node.kwargs), lambda n: became[n])
        part = Call(
            f"{call.name}.{node.name}", target, _plain(args), _plain(kwargs), phase=call.phase
        )
        part.module, part.once = call.module, call.once
        part.is_gradient_sum = call.is_gradient_sum
        if target in _DRAWS:
            self._draw(part, node)
            index = len(new.calls)
        fakes = node.meta["val"]
        part.is_tuple = not isinstance(fakes, torch.Tensor)
        users = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        found: list[Any] = []
        for position, fake in enumerate(fakes if part.is_tuple else (fakes,)):
            if not isinstance(fake, torch.Tensor):
                part.outputs.append(-1)
                found.append(fake)
                continue
            holder = users.get(position) if part.is_tuple else node
            known = value_of.get(holder, -1) if holder is not None else -1
            key = storage_key(fake)
            if known < 0:
                storage = storage_of.get(key, -1)
                value = self._value(
                    tuple(fake.shape), tuple(fake.stride()), fake.dtype, fake.device, storage
                )
            else:
                value = known
                if key in storage_of:  # a view of a part: the old storage belongs to that part
                    self.is_storage[new.values[value].storage] = storage_of[key]
            if key not in storage_of:
                storage_of[key] = new.values[value].storage
                new.storages[new.values[value].storage].size_bytes = fake.untyped_storage().nbytes()
                new.storages[new.values[value].storage].call = index
            else:
                part.is_view = True
            new.values[value].call, new.values[value].position = index, position
            part.outputs.append(value)
            found.append(Ref(value))
        new.calls.append(part)
        became[node] = tuple(found) if part.is_tuple else found[0]

    def _draw(self, part: Call, node: torch.fx.Node) -> None:
        """Make `part` draw its numbers from the next seed of the step."""
        if self.drawing is None:  # where inductor draws all seeds: behind what draws without one
            self.seeds = self._value((0,), (1,), torch.int64, self.device)
            self.num_seeds += 1
            name = "seeds" if self.num_seeds == 1 else f"seeds#{self.num_seeds}"
            draw = Call(name, inductor.draw_seeds, (0, self.device.type), {}, [self.seeds])
            draw.random = draw.once = True
            self.new.append(draw)
            self.drawing = draw
        seed = self._value((), (), torch.int64, self.device, self.new.values[self.seeds].storage)
        view = Call(f"{part.name}.seed", aten.select.int, (Ref(self.seeds), 0, self.num_draws), {})
        view.is_view, view.outputs, view.phase = True, [seed], part.phase
        self.new.values[seed].call = len(self.new.calls)
        self.new.calls.append(view)
        kind, given = _DRAWS[node.target], part.args  # type: ignore[index]
        if kind == "randint":
            low, high, size = given
            part.target, part.args = inductor.random_integer_op(), (low, high, size, Ref(seed))
        else:
            part.target, part.args = inductor.random_op(), (list(given[0]), Ref(seed), kind)
        part.kwargs, part.once = {}, False  # a seed gives the same numbers every time
        self.num_draws += 1
        fake = node.meta["val"]
        made = torch.int64 if kind == "randint" else torch.float32  # what inductor converts
        if fake.dtype != made:
            drawn = self._value(tuple(fake.shape), tuple(fake.stride()), made, fake.device)
            draw = replace(part, name=f"{part.name}.drawn", outputs=[drawn])
            draw.is_tuple = False
            num_bytes = made.itemsize * fake.numel()
            self.new.storages[self.new.values[drawn].storage].size_bytes = num_bytes
            self.new.append(draw)
            part.target = inductor.convert_op()
            part.args = (Ref(drawn), fake.dtype)

    def _end_seeds(self) -> None:
        """Let the draws that follow have seeds of their own, drawn before the first of them."""
        self._fill_seeds()
        self.drawing, self.num_draws = None, 0

    def _fill_seeds(self) -> None:
        if self.drawing is None:
            return
        value = self.new.values[self.seeds]
        value.shape = (self.num_draws,)
        self.new.storages[value.storage].size_bytes = 8 * self.num_draws
        self.drawing.args = (self.num_draws, self.device.type)

    # -- the rest ---------------------------------------------------------------------------------

    def _keep(self, call: Call) -> None:
        kept = replace(call, tokens=tuple(self.moved[token] for token in call.tokens))
        if call.takes_over >= 0:  # groups decide again what may overwrite what
            kept.takes_over, kept.overwriting = -1, None
        self.new.append(kept)

    def _value(
        self,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        storage: int = -1,
    ) -> int:
        new = self.new
        if storage < 0:
            storage = len(new.storages)
            new.storages.append(Storage(0, "computed"))
        new.values.append(Value(storage, shape, stride, dtype, device))
        return len(new.values) - 1

    def _storage(self, storage: int) -> int:
        while storage in self.is_storage:
            storage = self.is_storage[storage]
        return storage


def _as_meant(program: Program, call: Call, made: Any) -> Any:
    """What `call` made, in the types of its outputs: torch's traces of norms have others."""

    def typed(found: Any, v: int) -> Any:
        meant = program.values[v].dtype if v >= 0 and isinstance(found, torch.Tensor) else None
        return found if meant is None or found.dtype == meant else found.to(meant)

    if not isinstance(made, tuple):
        return typed(made, call.outputs[0])
    return tuple(map(typed, made, [*call.outputs, *[-1] * (len(made) - len(call.outputs))]))


def _frames_of_recurrence(program: Program) -> frozenset[str]:
    """Paths of the modules whose forward calls a recurrent layer of torch."""
    recurrent = torch.ops.schedsim.recurrent.default
    paths = (call.module for call in program.calls if call.target is recurrent)
    return frozenset(path.rpartition(".")[0] for path in paths)


def _is_view(node: torch.fx.Node) -> bool:
    fake = node.meta.get("val")
    if not isinstance(fake, torch.Tensor):
        return False
    keys = {
        storage_key(n.meta["val"])
        for n in node.all_input_nodes
        if isinstance(n.meta.get("val"), torch.Tensor)
    }
    return storage_key(fake) in keys


def _plain(tree: Any) -> Any:
    """Arguments of a graph's node with plain tuples, lists and dicts."""
    if isinstance(tree, Ref):
        return tree
    if isinstance(tree, dict):
        return {key: _plain(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_plain(item) for item in tree]
    if isinstance(tree, tuple):
        return tuple(_plain(item) for item in tree)
    return tree


def _leaves(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, tuple | list) else [tree]
