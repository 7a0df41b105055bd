"""One real forward of a step, recorded: the Python it runs, asks, draws from and leaves behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from schedsim.errors import UnsupportedError

from ..torch_private.module_tables import backward_hooks_of, parameters_of
from ..torch_private.op_modes import TorchDispatchMode, schema_of
from ..torch_private.open_functionals import bodies_seen_by
from ..torch_private.parametrization_cache import own_cached_weights
from ..torch_private.pytrees import tree_leaves, tree_map_only
from ..torch_private.storage_refs import DataPlaces, storage_key, unseen_writes
from .asking import Answers, Question
from .reach import CodeRun, Reach, static_reach
from .saved_elsewhere import copied_aside, copied_elsewhere
from .state import StateSnapshot
from .state_change import ATOMS, StateChange
from .watched_places import NO_PLACES, Places


@dataclass(frozen=True)
class Recorded:
    """The effects of one forward of a step besides its tensors.

    Attributes
    ----------
    reach
        Names that the code of the forward can look up.
    before
        The state that this code can read, before the forward.
    questions
        Questions that Python asked of tensors.
    effects
        Changes that it left behind in Python, one line each.
    draws
        Generators of Python and NumPy from which it drew.
    asked
        Places in its code that read a file or a clock.
    places
        Places of the effects.
    settles
        Whether a second run would have no effects, because the first one sets something up.
    warm
        Content of `places` after the first run.
    written
        Tensors from before the step that were written in place, by an op that declares it.
    moved
        Tensors from before the step whose data was replaced, as by ``tensor.data = other``.
    foreign
        Tensors to which the step gives a gradient, and that are neither inputs nor parameters of a
        module, with the places where they were found.
    trains
        Whether anything gets a gradient.
    branches
        Whether it ran `torch.cond`, which has no backward within a mode.
    """

    reach: Reach
    before: StateSnapshot
    questions: tuple[Question, ...] = ()
    effects: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    places: Places = NO_PLACES
    settles: bool = False
    warm: tuple[Any, ...] = ()
    written: tuple[Tensor, ...] = ()
    moved: tuple[Tensor, ...] = ()
    foreign: tuple[tuple[str, Tensor], ...] = ()
    trains: bool = True
    branches: bool = False

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Run the block with the state that the first run sets up, then restore the state."""
        if not self.settles:
            yield
            return
        cold = self.places.take()
        self.places.put(list(self.warm))
        try:
            yield
        finally:
            self.places.put(cold)

    def state(self) -> StateSnapshot:
        """The state that the step can read, as it is now."""
        return self.before.again()

    def refuse_graph(self) -> None:
        """Raise where a graph, which contains no Python, would be another step.

        Raises
        ------
        UnsupportedError
            The graph would lose something, which the message names.
        """
        if self.draws:
            raise UnsupportedError(
                f"a step draws numbers from {' and '.join(self.draws)}, which a graph would freeze",
                hint="draw them with torch, or outside of forward and loss as an input; "
                "or level='block'",
            )
        if self.asked:
            raise UnsupportedError(
                f"a step reads a file or a clock, which a graph would not: {self.asked[0]}",
                hint="read it in the loop, and set an attribute or hand it in as an input; "
                "or level='block'",
            )
        numbers = [q for q in self.questions if _is_measured(q.answer)]
        if numbers:
            raise UnsupportedError(
                f"{numbers[0].name} of a tensor is {str(numbers[0].answer)[:40]} in this step, and "
                "likely another number in every other",
                hint="compare tensors, as (x > 0).all(), or stay with tensors; or level='block'",
            )
        if self.effects and not self.settles:
            raise UnsupportedError(
                f"a step changes what Python holds, which a graph would not: {self.effects[0]}",
                hint="keep it in a buffer that is changed in place, or do it in the loop; "
                "or level='block'",
            )

    def refuse_foreign_leaves(self) -> None:
        """Raise where a step trains a tensor that is no parameter of the model or the loss.

        Raises
        ------
        UnsupportedError
            There is one; the message says where.
        """
        if self.foreign:
            raise UnsupportedError(
                f"a step trains {self.foreign[0][0]}, which is a parameter neither of the model "
                "nor of the loss, so that a plan would give it no gradient",
                hint="register it as an nn.Parameter of the model, or of a loss that is an "
                "nn.Module; or plan the model in place, with the loss outside: in_place=True",
            )


def _is_measured(answer: Any) -> bool:
    """Whether an answer is, or contains, a number that is not whole."""
    if isinstance(answer, list):
        return any(map(_is_measured, answer))
    return isinstance(answer, float | complex)


def python_generators() -> tuple[Any, Any]:
    """States of the default generators of Python and NumPy."""
    return random.getstate(), np.random.get_state()


def restore_python_generators(states: tuple[Any, Any]) -> None:
    """Set the generators to `states`."""
    random.setstate(states[0])
    np.random.set_state(states[1])


@contextmanager
def kept_python(recorded: Recorded | None) -> Iterator[None]:
    """Restore what steps in the block change outside of tensors, and Python's generators.

    Hooks of a backward may change other places than the forward that was recorded.
    """
    generators = python_generators()
    contents = recorded.places.take() if recorded is not None else []
    state = recorded.state() if recorded is not None else None
    try:
        yield
    finally:
        restore_python_generators(generators)
        if recorded is not None and state is not None:
            recorded.places.put(contents)
            state.restore()


@contextmanager
def kept_generators(*roots: Any) -> Iterator[None]:
    """Set the generators that a model, a loss or their code holds back after the block."""
    named = {str(i): root for i, root in enumerate(roots) if root is not None}
    state = StateSnapshot(named, static_reach(named.values()))
    try:
        yield
    finally:
        state.restore_generators()


def drawn(before: tuple[Any, Any]) -> list[str]:
    """The generators that have been drawn from since `before`."""
    now = python_generators()
    found = ["Python's random"] if now[0] != before[0] else []
    same = all(np.array_equal(a, b) for a, b in zip(now[1], before[1], strict=True))
    return found if same else [*found, "NumPy's generator"]


def record(
    model: nn.Module,
    loss: Any,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    run: Callable[[tuple[Any, ...], Mapping[str, Any]], Any],
) -> Recorded:
    """Run a forward once and record it; run it again if the first run left something behind.

    Everything is restored: attributes, tensors written in place, generators.

    Parameters
    ----------
    model, loss
        The model and the loss whose state is watched, beside the objects among the inputs.
    run
        ``run(inputs, keywords)`` gives the loss.

    Raises
    ------
    UnsupportedError
        The step reads an iterator, whose items the planning would use up.
    """
    roots = {"model": model, "loss": loss, **_objects(inputs, keywords)}
    static = static_reach([root for root in roots.values() if root is not None])
    around = StateSnapshot(roots, static)
    refuse_iterators(around)
    recorder = _Recorder(model, loss, run)
    first = recorder.once(around, inputs, keywords)
    if not first.effects or first.draws or first.moved:
        return first
    first.places.put(list(first.warm))
    try:
        second = recorder.once(around.again(), inputs, keywords)
    except Exception:  # what the first has left is nothing that a step can begin with
        return first
    finally:
        around.restore()
    written = {id(t) for t in first.written}
    if second.effects or {id(t) for t in second.written} != written:
        return first
    reach = first.reach.joined(second.reach)
    return replace(first, settles=True, reach=reach, asked=second.asked)


def _objects(inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that are no tensors and whose contents may change, by name."""
    return {
        f"input {i}": leaf
        for i, leaf in enumerate(tree_leaves((inputs, dict(keywords))))
        if not isinstance(leaf, (Tensor, *ATOMS))
    }


def refuse_iterators(state: StateSnapshot) -> None:
    """Raise where a step can read an iterator, whose items would be gone.

    Raises
    ------
    UnsupportedError
        There is one; the message says where.
    """
    if state.iterators:
        raise UnsupportedError(
            f"a step can read an iterator, {state.iterators[0]}, whose items planning and "
            "recomputing would use up",
            hint="take its items in the loop, and hand them in as inputs",
        )


@dataclass(frozen=True)
class _Recorder:
    model: nn.Module
    loss: Any
    run: Callable[[tuple[Any, ...], Mapping[str, Any]], Any]

    def once(
        self, around: StateSnapshot, inputs: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Recorded:
        """One run from the state `around`, which is restored."""
        try:
            # The mode is that of training, but nothing is kept for a backward.
            keeping = saved_tensors_hooks(lambda tensor: None, _not_kept)
            return self._once(around, inputs, keywords, keeping)
        except (_TookBackward, RuntimeError) as error:
            # A step that differentiates within itself needs saved tensors; torch.func refuses such
            # hooks.
            if not isinstance(error, _TookBackward) and "saved tensor hooks" not in str(error):
                raise
        return self._once(around, inputs, keywords, nullcontext())

    def _once(
        self,
        around: StateSnapshot,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        keeping: Any,
    ) -> Recorded:
        roots = [m for m in (self.model, self.loss) if isinstance(m, nn.Module)]
        buffers = [buffer for root in roots for buffer in root.buffers()]
        parameters = [parameter for root in roots for parameter in root.parameters()]
        leaves = [t for t in tree_leaves((inputs, dict(keywords))) if isinstance(t, Tensor)]
        python, ends = python_generators(), ExitStack()
        undo = Undo(buffers, ends.enter_context(copied_elsewhere()))
        codes, answers = CodeRun(), Answers()
        held = DataPlaces([*around.tensors.values(), *parameters, *buffers])
        # Buffers end as they began; code that saved one need not know.
        ends.enter_context(unseen_writes(buffers))
        ends.enter_context(own_cached_weights())
        try:
            with (
                _torch_generators(self.model),
                torch.enable_grad(),
                undo,
                codes,
                answers,
                bodies_seen_by(answers),
                keeping,
            ):
                trained = leaves_behind(self.run(inputs, keywords))
            changes = around.changes()
            draws = (*drawn(python), *around.draws())
            places = around.changed()
            warm = tuple(places.take())
            moved = held.moved()
        finally:
            held.restore()
            undo.restore()
            ends.close()
            around.restore()
            restore_python_generators(python)
        effects = [str(change) for change in changes]
        known = {_storage(tensor) for tensor in [*parameters, *buffers, *leaves]}
        paths = {_storage(tensor): path for path, tensor in around.tensors.items()}
        for key in undo.written:
            if key not in known and key in paths:
                effects.append(f"{paths[key]} is written in place, and is no buffer")
        for tensor in moved:
            path = paths.get(_storage(tensor), "a tensor")
            effects.append(f"{path} is given other data (.data = ...)")
        for module in (module for root in roots for module in root.modules()):
            for hook in backward_hooks_of(module):
                codes.note_function(hook)
        reach = codes.reach()
        return Recorded(
            reach=reach,
            before=StateSnapshot(around.roots, reach),
            questions=tuple(answers.questions),
            effects=tuple(effects),
            draws=draws,
            asked=tuple(codes.asked),
            places=places,
            warm=warm,
            written=tuple(tensor for tensor, _ in undo.written.values()),
            moved=tuple(moved),
            trains=bool(trained),
            branches=answers.branches,
            foreign=tuple(
                (path, tensor)
                for path, tensor in around.tensors.items()
                if any(tensor is leaf for leaf in trained)
                if not any(tensor is one for one in (*parameters, *leaves))
            ),
        )


def leaves_behind(output: Any) -> list[Tensor]:
    """The leaves that a backward from `output` would give a gradient. O(nodes of its graph)."""
    nodes = [t.grad_fn for t in tree_leaves(output) if isinstance(t, Tensor)]
    seen, found = set(nodes), []
    while nodes:
        node = nodes.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.append(leaf)
        for following, _ in node.next_functions if node is not None else ():
            if following not in seen:
                seen.add(following)
                nodes.append(following)
    return found


class _TookBackward(Exception):
    """The forward asked for tensors that a backward needs."""


def _not_kept(_: None) -> Tensor:
    raise _TookBackward


def is_reparametrised(change: StateChange) -> bool:
    """Whether torch sets the place anew in every forward, like that of a pruned weight."""
    owner = change.owner
    if not isinstance(owner, nn.Module) or not isinstance(change.now, Tensor):
        return False
    name = change.path.rpartition(".")[2]
    parameters = parameters_of(owner)
    return f"{name}_orig" in parameters or {f"{name}_g", f"{name}_v"} <= set(parameters)


@contextmanager
def _torch_generators(model: nn.Module) -> Iterator[None]:
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(sorted(devices, key=str)):
        yield


def _storage(tensor: Tensor) -> int:
    try:
        return storage_key(tensor)
    except (NotImplementedError, RuntimeError):  # sparse, nested
        return id(tensor)


class Undo(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what ops are about to overwrite in tensors from before, and restores it.

    Parameters
    ----------
    buffers
        Buffers are kept from the start, because kernels write running statistics undeclared.
    copied
        Makes the copies, outside of the device's memory.

    Attributes
    ----------
    written
        Those tensors and copies of what they held, by their storage.
    """

    supports_higher_order_operators = True

    def __init__(self, buffers: list[Tensor], copied: Callable[[Tensor], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._copied = copied
        self.kept = [(buffer, copied_aside(buffer, copied)) for buffer in buffers]
        self.made: set[int] = set()
        self.written: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = schema_of(func)
        if schema is not None and schema.is_mutable:
            self._keep(schema, args, kwargs)
        out = func(*args, **kwargs)
        if type(out) is Tensor and _makes_one(func):
            self.made.add(_storage(out))
            return out
        given = {_storage(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and (key := _storage(tensor)) not in given:
                self.made.add(key)
        return out

    def _keep(self, schema: Any, args: Any, kwargs: Any) -> None:
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in tree_leaves(given):
                if not isinstance(tensor, Tensor):
                    continue
                key = _storage(tensor)
                if key not in self.made and key not in self.written:
                    self.written[key] = (tensor, copied_aside(_whole(tensor), self._copied))

    def restore(self) -> None:
        """Put everything back."""
        with torch.no_grad():
            for tensor, content in self.kept:
                tensor.detach().copy_(content)
            for tensor, content in self.written.values():
                whole = _whole(tensor)
                if whole.layout is torch.strided:  # an op may have enlarged it
                    whole = whole[: len(content)]
                whole.copy_(content)


@cache
def _makes_one(func: Any) -> bool:
    """Whether an op returns one tensor, in memory of its own."""
    schema = schema_of(func)
    if schema is None or not schema.name.startswith("aten::") or "unsafe" in schema.name:
        return False
    return len(schema.returns) == 1 and schema.returns[0].alias_info is None


def _whole(tensor: Tensor) -> Tensor:
    """A view of the whole storage under `tensor`."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        return tensor
    size = tensor.untyped_storage().nbytes() // max(1, tensor.element_size())
    return tensor.as_strided((size,), (1,), 0)


def detached_copies(tree: Any) -> Any:
    """`tree` with copies of its tensors, which require a gradient if the originals do.

    A tensor that occurs twice, as input and as label, stays one tensor, because code may compare.
    """
    copies: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return copies[id(tensor)]

    return tree_map_only(Tensor, copied, tree)
