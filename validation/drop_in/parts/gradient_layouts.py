"""One graph as several parts, for the backwards that come.

Its gradients may come in other strides than its outputs have, and its backward may run in another
autocast.
"""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from schedsim import Schedule
from schedsim.errors import SchedsimError, UnsupportedError

from ...autocasts import Autocast, backward_within
from ...guards.plan_variants import RoundingWarning
from ...op_level.emit import Halves
from ...torch_private.autograd_nodes import node_of_graph, unsaved_by
from ...torch_private.dynamo_graphs import tracing_again
from ...torch_private.fake_tensors import without_memory
from ...torch_private.graph_halves import Strides
from ...torch_private.storage_refs import version_of
from ...user_warnings import warn_user
from .joint_part import GivenGradient

if TYPE_CHECKING:
    from ..session import Session
    from .traced_part import TracedPart

Layout = tuple[Strides, ...]
"""The strides of each gradient that a part is given."""

Come = tuple[Layout, Autocast]
"""How a backward comes: with gradients in these strides, in this autocast."""

Trace = Callable[
    [Sequence[Any], Mapping[int, Strides]], tuple[Callable[..., Any], "TracedPart | None"]
]
"""Traces a graph for examples of its arguments, and for the strides of gradients by output.

It returns what Dynamo calls, and the part behind it.
"""

_MOST_LAYOUTS = 8


@contextmanager
def second_trace(
    session: Session, examples: Sequence[Any], forward: Autocast, backward: Autocast
) -> Iterator[None]:
    """Within it, a graph is traced again for `examples`, its halves in these autocasts."""
    with (
        session.tracing(),
        tracing_again(examples),
        torch.enable_grad(),
        forward.entered(),
        backward_within(backward),
    ):
        yield


class GradientLayouts:
    """What Dynamo calls for one graph: a part for each way in which its backward comes.

    AOTAutograd traces a backward for gradients with the strides of the outputs. It copies those
    that come in other strides, and makes zeros where none comes. The products and sums behind
    have another order then than those of the plain step. So the graph is traced again for the
    gradients that come, at the first backward in which they come so: the forward is the same one,
    and what it has kept is handed to the new backward. Where strides are new, later calls run by
    the new part; where a gradient lacks, it may come the next time, and only the backward is used.
    The same is done where the backward runs in another autocast than the traced one.

    Parameters
    ----------
    trace, examples
        The function that traced the graph, and the arguments that it was traced for.
    call, part
        What it returned.
    """

    def __init__(
        self,
        session: Session,
        trace: Trace,
        examples: Sequence[Any],
        call: Callable[..., Any],
        part: TracedPart,
    ) -> None:
        self._session, self._trace, self._call, self._part = session, trace, call, part
        self._examples: list[Any] | None = None
        with suppress(Exception):  # of a tensor that cannot be without memory
            self._examples = without_memory(examples)
        self._autocast = Autocast.now()
        self._parts: dict[Come, TracedPart | None] = {_traced(part): part}
        self._taken: dict[tuple[TracedPart, int, Come], tuple[TracedPart, int] | None] = {}
        self._backward_autocast = part.backward_place.traced  # of the backward that runs now
        part.runs_by(self)

    def __call__(self, *arguments: Any) -> Any:
        """Call the graph by the part in use."""
        found = self._call(*arguments)
        begins = self._part.watch_buffers()

        def backward_begins(_given: Sequence[Any]) -> None:
            begins()
            # AOTAutograd switches autocast off around the code of its backward.
            self._backward_autocast = Autocast.now()

        watch_backward(found, backward_begins, makes_zeros=False)
        return found

    def backward_of(
        self, part: TracedPart, number: int, given: list[Any]
    ) -> tuple[TracedPart, Halves]:
        """The part and the code for gradients like these, after a forward of `part`.

        Where no other part takes over what the forward by schedule `number` has kept, `given` is
        changed into the form for which `part` was traced.
        """
        own = part, part.code.halves(number)
        traced, autocast = _traced(part)
        layout = tuple(
            None if it is None else was if _equal(it.stride(), was, it.shape) else it.stride()
            for it, was in zip(given, traced, strict=True)
        )
        came = layout, self._backward_autocast
        if came == (traced, autocast):
            return own
        if came not in self._parts:
            # A made-up loss has strides of its own; what lacks there is read by no graph behind.
            lacks = autocast == came[1] and all(map(_absent_or_equal, layout, traced))
            if lacks or not self._session.is_rehearsing:
                self._add(came, traced)
        found = self._taken_by(part, number, came, given)
        if found is not None:
            return found[0], found[0].code.halves(found[1])
        if not all(map(_absent_or_equal, layout, traced)):
            self._say_rounded(f"gradients come to {self._part.name} in strides {layout}")
        if came[1] != autocast:
            self._say_rounded(f"the backward of {self._part.name} runs {came[1]}")
        put_in_form(given, part.given)
        return own

    def _taken_by(
        self, part: TracedPart, number: int, came: Come, given: Sequence[Any] = ()
    ) -> tuple[TracedPart, int] | None:
        other, key = self._parts.get(came), (part, number, came)
        if other is None:
            return None
        other.learn_dropped(part.use.dropped)
        if key not in self._taken:
            self._taken[key] = _taken_over(part, number, other, given)
        return self._taken[key]

    def taken_without(
        self, part: TracedPart, number: int, lacking: Container[int]
    ) -> tuple[TracedPart, int] | None:
        """The part and its schedule by which backwards run for which gradients are `lacking`.

        ``None`` where the backward of `part` by its schedule `number` runs, with zeros for them.
        """
        traced, autocast = _traced(part)
        layout = tuple(None if i in lacking else was for i, was in enumerate(traced))
        return self._taken_by(part, number, (layout, autocast))

    def stand_in(self, part: TracedPart, given: list[Any]) -> None:
        """Leave out gradients of `part` that lack: its backward without them reads none."""

    def _add(self, came: Come, traced: Layout) -> None:
        """Add the part for a backward that `came` so, and the one by which later calls run."""
        layout, autocast = came
        whole = tuple(was if it is None else it for it, was in zip(layout, traced, strict=True))
        for one in dict.fromkeys((whole, layout)):
            if (one, autocast) not in self._parts:
                self._parts[one, autocast] = self._another(one, autocast)
                self._part.evaluate_again()

    def _another(self, layout: Layout, autocast: Autocast) -> TracedPart | None:
        """The part for such a backward, by which later calls run if no gradient lacks."""
        if len(self._parts) > _MOST_LAYOUTS or self._examples is None:
            return None
        outputs = [it.output for it in self._part.given]
        known = len(self._session.parts)
        try:
            with second_trace(self._session, self._examples, self._autocast, autocast):
                call, part = self._trace(self._examples, dict(zip(outputs, layout, strict=True)))
        except Exception:  # copies and zeros are right within rounding
            part = None
        is_lasting = None not in layout and part is not None and _layout_of(part) == layout
        if part is None or not is_lasting:
            del self._session.parts[known:]
            return part if None in layout else None
        why = "runs in another autocast"
        if autocast == self._part.backward_place.traced:
            why = "has gradients in other strides"
        self._session.replace(self._part, part, f"its backward {why}")
        self._call, self._part = call, part
        part.runs_by(self)
        return part

    def _say_rounded(self, what: str) -> None:
        if self._session.is_rehearsing:
            return
        line = f"{what}, for which it was not traced: this step is the plain one within rounding"
        self._session.note(line)
        warn_user(line, RoundingWarning)


def copied_gradients(found: Any) -> Callable[[Sequence[Any]], bool]:
    """Whether the backward of a graph that returned `found` gets copies of some of its gradients.

    Where sizes are open, AOTAutograd copies those that come in other strides than outputs have,
    before the backward sees them.
    """
    outputs = found if isinstance(found, tuple | list) else (found,)
    traced = {_form(it) for it in outputs if _is_strided(it)}

    def are_copied(given: Sequence[Any]) -> bool:
        come = (it for it in given if _is_strided(it) and not it.is_contiguous())
        return any(_form(it) not in traced for it in come)

    return are_copied


def _is_strided(it: Any) -> bool:
    return isinstance(it, torch.Tensor) and it.layout is torch.strided


def _form(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...]]:
    return tensor.shape, tensor.stride()


def watch_backward(
    found: Any, begins: Callable[[Sequence[Any]], None], *, makes_zeros: bool = True
) -> None:
    """Call `begins` as the backward of the graph begins that returned `found`.

    Second derivatives are refused. Gradients that do not come are zeros, or ``None``.
    """
    node = node_of_graph(found)
    if node is None:
        return
    found = found if isinstance(found, tuple | list) else (found,)
    if not makes_zeros:
        node.set_materialize_grads(False)
    _refuse_second_derivatives(node)
    _refuse_written_outputs(node, found)
    node.register_prehook(begins)


def _refuse_written_outputs(node: Any, found: Sequence[Any]) -> None:
    """Say so where the backward of `node` would read outputs that the loop has written meanwhile.

    autograd refuses that anyway, in words that name neither.
    """
    known, outputs = weakref.ref(node), (it for it in found if type(it) is torch.Tensor)
    versions = [(weakref.ref(it), version_of(it)) for it in outputs if not it.is_inference()]

    def watch(_given: Sequence[Any]) -> None:
        now = ((ref(), version) for ref, version in versions)
        written = [it for it, version in now if it is not None and version_of(it) != version]
        node = known() if written else None
        error = None if node is None else unsaved_by(node)
        if error is not None:
            sizes = ", ".join(str(tuple(it.shape)) for it in written)
            raise SchedsimError(
                f"an output of the model ({sizes}) was written in place before the backward, which "
                "computes again from it by its schedule, whether the plain step reads it there or "
                "not",
                hint="write into a copy, as out = out.clone(), or out of place",
            ) from error

    node.register_prehook(watch)


def _refuse_second_derivatives(node: Any) -> None:
    """Have gradients that the backward of `node` gave say so where they are derived themselves."""
    known = weakref.ref(node)

    def watch(_given: Sequence[Any]) -> None:
        # The engine keeps the gradients that a node is given as long as it runs if a hook waits
        # behind the node: so the hook is added only where a graph of the backward is asked for.
        node = known()
        if torch.is_grad_enabled() and node is not None:  # create_graph=True
            node.register_hook(_mark_derived)

    node.register_prehook(watch)


def _mark_derived(gradients: Sequence[Any], _given: Sequence[Any]) -> None:
    for gradient in gradients:
        if isinstance(gradient, torch.Tensor) and gradient.grad_fn is not None:
            gradient.grad_fn.register_prehook(_refuse_derivative)


def _refuse_derivative(_given: Sequence[Any]) -> None:
    raise UnsupportedError(
        "a gradient of a model within a budget is derived again (create_graph=True): its backward "
        "is a schedule, and no graph",
        hint="call model.forward(...) of the plain model for that gradient, which runs as it is; "
        "or take the gradient inside of forward, by torch.autograd.grad, and give the loss: "
        "schedsim.rematerialize(model, inputs, budget, loss)",
    )


def put_in_form(given: list[Any], forms: Sequence[GivenGradient]) -> None:
    """Replace gradients in other strides by copies, and those that lack by zeros."""
    device = next((it.device for it in given if it is not None), None)
    for i, (it, form) in enumerate(zip(given, forms, strict=True)):
        if form.shape is None:
            continue
        if it is None:
            zeros = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=device)
            given[i] = zeros.zero_()
        elif it.stride() != form.strides:
            given[i] = it.new_empty_strided(form.shape, form.strides).copy_(it)


def _absent_or_equal(one: Strides, was: Strides) -> bool:
    """Whether a gradient does not come, or as it was traced."""
    return one is None or one == was


def _layout_of(part: TracedPart) -> tuple[tuple[int, ...], ...]:
    return tuple(it.strides for it in part.given)


def _traced(part: TracedPart) -> tuple[tuple[tuple[int, ...], ...], Autocast]:
    """The backward for which `part` was traced."""
    return _layout_of(part), part.backward_place.traced


def _equal(one: tuple[int, ...], other: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether strides differ at most in dimensions of one entry, or of none."""
    if 0 in shape:
        return True
    return all(a == b or size == 1 for a, b, size in zip(one, other, shape, strict=True))


def _taken_over(
    part: TracedPart, number: int, other: TracedPart, given: Sequence[Any]
) -> tuple[TracedPart, int] | None:
    """`other` and its schedule, if its backward reads what a forward of `part` has kept.

    It takes no more memory than the backward of `part` beside copies in the strides of that, and
    zeros for gradients that lack. Without `given`, none are copied.
    """
    alike = _alike(part, other)
    if alike is None:
        return None
    schedule = _by_ops_of(other, part, part.schedules[number], alike)
    try:
        at = other.add(schedule)
    except SchedsimError:
        return None
    kept, needed = (
        _kept(it, part.program.constants)
        for it in (part.code.halves(number), other.code.halves(at))
    )
    same = part.program.constants.keys() == other.program.constants.keys()
    if not same or not needed <= kept:
        return None
    if not other.is_measured:
        other.cost_as(part, alike)
    copied = sum(
        it.untyped_storage().nbytes()
        for it, was in zip(given, part.given, strict=False)
        if it is not None and it.stride() != was.strides
    )
    if other.cost(at).backward_bytes > part.own_backward_bytes(number) + copied:
        return None
    return other, at


def _kept(halves: Halves, constants: Container[int]) -> set[tuple[str, int]]:
    """What the forward half keeps for the backward half: values, and states of generators."""
    found = {("carried", v) for v in halves.carried}
    found |= {("state", halves.repeated_random[k]) for k in halves.carried_states}
    read = (v for v in halves.resident if v in halves.read_backward and v not in constants)
    return found | {("resident", v) for v in read}


def _alike(part: TracedPart, other: TracedPart) -> dict[str, str] | None:
    """Ops of the backward of `part` -> those of `other` that stand for them.

    ``None`` where the forwards differ.
    """
    mine, its = part.graph.op_names, other.graph.op_names
    seed, at = mine.index(part.seed_name), its.index(other.seed_name)
    if mine[:seed] != its[:at]:
        return None
    ones, others = mine[seed + 1 :], its[at + 1 :]
    found = difflib.SequenceMatcher(None, _kinds(ones), _kinds(others), autojunk=False)
    return {
        ones[block.a + k]: others[block.b + k]
        for block in found.get_matching_blocks()
        for k in range(block.size)
    }


def _by_ops_of(
    other: TracedPart, part: TracedPart, schedule: Schedule, alike: Mapping[str, str]
) -> Schedule:
    """`schedule` of `part` by the ops of `other`: equal up to the loss, and alike behind.

    Ops of the backward come first in the order of `other`; repeats come before the ops that stand
    for those which they come before in `schedule`.
    """
    mine, its = part.graph.op_names, other.graph.op_names
    backward = set(mine[mine.index(part.seed_name) + 1 :])
    behind = its[its.index(other.seed_name) + 1 :]
    places = {name: i for i, name in enumerate(behind)}
    names = list(schedule.names)
    half = names.index(part.seed_name)
    runs, done = [*names[:half], other.seed_name], 0
    for name in names[half + 1 :]:
        if name not in backward:
            runs.append(name)
        elif name in alike and places[alike[name]] >= done:
            until = places[alike[name]] + 1
            runs += behind[done:until]
            done = until
        elif name in alike:
            runs.append(alike[name])
    return Schedule.from_names([*runs, *behind[done:]])


def _kinds(names: Sequence[str]) -> list[str]:
    return [name.partition("#")[0] for name in names]
