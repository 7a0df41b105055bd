"""The joint graph of a part of a step as a program with many outputs and their gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from schedsim.errors import UnsupportedError

from ...capture.accumulation import add_in_place
from ...capture.checks import order_checks
from ...capture.effects import add_gradients, order_draws, order_messages
from ...capture.fronts import Traced
from ...capture.naming import clean
from ...capture.program import Program, Ref, refs
from ...capture.program_builder import ProgramBuilder, communicates, needed_for
from ...capture.varying_sizes import VaryingSize, open_sizes
from ...torch_private.fake_tensors import is_symbolic, known_of
from ...torch_private.graph_roles import Role, output_roles, placeholder_role

_ADDS = frozenset({torch.ops.aten.add.Tensor})
_CASTS = frozenset({torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default})


class WrittenInputs(NamedTuple):
    """What is written between the halves of a part, by positions of its inputs.

    Attributes
    ----------
    changing
        Inputs that a forward writes, in this part or behind it: what reads them runs once, in the
        forward half.
    doubted
        Buffers that code behind this part may write before the backward half.
    unsaved
        Buffers that the loop may write there, where the backward half of the plain step reads none:
        for others autograd would refuse that.
    """

    changing: Collection[int] = ()
    doubted: Collection[int] = ()
    unsaved: Collection[int] = ()


NOTHING_WRITTEN = WrittenInputs()


class JointPart(NamedTuple):
    """A part of a step as a program, and the places of its arguments and results.

    Attributes
    ----------
    program
        The program; its `held` values are outputs that the caller gets.
    inputs
        For each argument of the forward half, its value; -1 for a number.
    gradients
        For each argument, the value of its gradient, or -1.
    returned
        For each output of the forward half, a `Ref`, a number (a `VaryingSize` where it is open),
        or ``None``.
    device
        The kind of device whose kernels the program calls.
    open_sizes
        Sizes that the trace left open: name -> place among the arguments.
    given
        The gradients that the backward half gets, in order.
    sums, casts
        Arguments whose gradients the last op adds; and parameters for which it casts them.
    doubted
        Places of arguments that code behind the part may write, with their names.
    """

    program: Program
    inputs: tuple[int, ...]
    gradients: tuple[int, ...]
    returned: tuple[Any, ...]
    device: str
    open_sizes: Mapping[str, OpenSize]
    given: tuple[GivenGradient, ...]
    sums: frozenset[int]
    casts: frozenset[int]
    doubted: Mapping[int, str]

    def made_of_none(self, lacking: Collection[int]) -> list[int]:
        """Arguments whose gradients are made of none but `lacking` ones: none comes to them.

        A backward is linear in the gradients that it is given, so that zeros in their place would
        give zeros; a plain step gives no gradient there, which an optimizer tells from zeros.
        O(calls).
        """
        program = self.program
        made_of = {v: 1 << i for i, v in enumerate(program.tangents)}
        for call in program.calls:
            args = call.lean[1] if call.lean else call.args
            found = 0
            for v in refs((args, call.kwargs)):
                found |= made_of.get(v, 0)
            if found:
                made_of.update((v, found) for v in call.outputs if v >= 0)
        come = sum(1 << i for i in range(len(program.tangents)) if i not in lacking)
        masks = [made_of.get(v, 0) for v in self.gradients]
        return [at for at, mask in enumerate(masks) if mask and not mask & come]


class GivenGradient(NamedTuple):
    """A gradient that the caller gives for an output.

    Attributes
    ----------
    output
        The output's number among those of the graph; -1 for what is no output of the graph.
    strides
        The strides for which the backward half was traced.
    shape, dtype
        Its form; the shape is ``None`` where a size is open.
    """

    output: int
    strides: tuple[int, ...]
    shape: tuple[int, ...] | None
    dtype: torch.dtype


class OpenSize(NamedTuple):
    """A size that may differ from step to step.

    Attributes
    ----------
    position, dim
        The argument, and its dimension; -1 if the argument is the number itself.
    source
        Expression by which Dynamo names it, like ``L['x'].size()[1]``.
    traced
        Its value during tracing.
    told
        The largest value that the caller told torch of; otherwise ``None``.
    most
        The largest value that the graph takes; ``None`` where any is taken.
    """

    position: int
    dim: int
    source: str
    traced: int
    told: int | None
    most: int | None


def joint_part(
    graph_module: torch.fx.GraphModule,
    num_outputs: int,
    fixed: frozenset[int],
    names: Sequence[str],
    written: WrittenInputs = NOTHING_WRITTEN,
    places: Sequence[int] | None = None,
) -> JointPart:
    """The program of a joint graph whose first `num_outputs` outputs are those of the forward half.

    Parameters
    ----------
    fixed
        Positions of the inputs that are parameters and buffers.
    names
        Expressions by which Dynamo names the inputs.
    written
        What is written while the part is in flight.
    places
        For each position among Dynamo's inputs, of which `names`, `written` and the graph's own
        roles tell, the one among the inputs of the joint graph; the same if ``None``.

    Raises
    ------
    UnsupportedError
        The graph contains a construct that cannot be scheduled; the message names it.
    """
    at = list(range(len(names))) if places is None else places
    named = {at[i]: name for i, name in enumerate(names) if i < len(at)}
    return _JointBuilder(
        graph_module,
        num_outputs,
        fixed,
        [named.get(i, "") for i in range(1 + max(named, default=-1))],
        WrittenInputs(*(frozenset(at[i] for i in them if i < len(at)) for them in written)),
        at,
    ).part()


class _JointBuilder(ProgramBuilder):
    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        num_outputs: int,
        fixed: frozenset[int],
        names: Sequence[str],
        written: WrittenInputs,
        places: Sequence[int],
    ) -> None:
        traced = Traced(graph_module, (), "dynamo", False, {})
        device = _device(graph_module)
        super().__init__(traced, device)
        self.num_outputs, self.fixed = num_outputs, fixed
        self.written, self.places = written, places
        self.sources = list(names)
        self.names = [clean(name) for name in names]
        self.found: dict[str, OpenSize] = {}
        self.inputs: list[int] = []
        self.given: list[GivenGradient] = []
        self.spans: dict[int, Any] = {}  # storage of an input -> bytes by that input's own sizes

    def part(self) -> JointPart:
        graph = self.graph_module.graph
        roles = output_roles(graph)
        needed = needed_for(graph, [it for it, _ in roles if isinstance(it, torch.fx.Node)])
        for node in graph.nodes:
            if node.op == "placeholder":
                self._argument(node)
            elif node in needed and node.op == "get_attr":
                self._constant(node)
            elif node in needed and node.op == "call_function":
                self._function(node, is_loss=False)
        program = self.program
        outputs, gradients = roles[: self.num_outputs], roles[self.num_outputs :]
        # A size that Dynamo took for open, and that torch fixed in the trace, is a plain number.
        returned = [self.became[it] if isinstance(it, torch.fx.Node) else it for it, _ in outputs]
        program.outputs = list(dict.fromkeys(it.value for it in returned if isinstance(it, Ref)))
        self._hold(outputs)
        self._put_seed("outside")
        self._protect_changed(outputs)
        found = [self._ref(node) if node is not None else -1 for node, _ in gradients]
        sums = self._made_by(found, _ADDS) | self._added_inputs(found)
        casts = self._made_by(found, _CASTS)
        made = self._add_gradients(found)
        add_in_place(program)
        order_draws(program)
        order_messages(program, self._messages())
        order_checks(program)
        self.namer.name(program)
        return JointPart(
            program,
            tuple(self.inputs),
            tuple(made),
            tuple(returned),
            self.device,
            self._open_sizes(returned),
            tuple(self.given),
            sums,
            casts,
            {i: self._source(i) for i, v in enumerate(self.inputs) if v in program.doubted},
        )

    def _messages(self) -> list[int]:
        calls = enumerate(self.program.calls)
        return [i for i, call in calls if communicates(call.target) and not call.is_view]

    def _made_by(self, found: Sequence[int], targets: frozenset[Any]) -> frozenset[int]:
        """The parameters, by position, whose gradients are `found` by one of these ops.

        Not of the gradient that is given for a parameter which the graph changes: none comes.
        """
        program = self.program
        values = program.values
        made = {i: values[found[i]].call for i in self.fixed if i < len(found) and found[i] >= 0}
        calls = {i: program.calls[at] for i, at in made.items() if at >= 0}
        return frozenset(
            i
            for i, call in calls.items()
            if call.target in targets
            and all(values[v].call != program.seed for v in refs((call.args, call.kwargs)))
        )

    def _added_inputs(self, found: Sequence[int]) -> frozenset[int]:
        """The arguments that are no parameters, by position, whose gradients are sums."""
        program = self.program
        made = {i: program.values[v].call for i, v in enumerate(found) if v >= 0}
        return frozenset(
            i
            for i, at in made.items()
            if i not in self.fixed and at >= 0 and program.calls[at].target in _ADDS
        )

    def _argument(self, node: torch.fx.Node) -> None:
        fake = node.meta.get("val")
        if fake is None:  # a number that the trace has put into the ops that read it
            self.inputs.append(-1)
            return
        if not isinstance(fake, torch.Tensor):
            self._number_argument(node)
            return
        program = self.program
        role = placeholder_role(node)
        if role.kind == "tangent" or node.name.startswith("tangents"):
            open_size = any(is_symbolic(n) for n in (*fake.shape, *fake.stride()))
            output = int(role.key) if role.kind == "tangent" else -1
            strides, shape = ((), None) if open_size else (fake.stride(), tuple(fake.shape))
            self.given.append(GivenGradient(output, strides, shape, fake.dtype))
            program.tangents.append(self._value(fake, "computed"))
            self.became[node] = Ref(program.tangents[-1])
            return
        position = len(self.inputs)
        kind = "static" if position in self.fixed else "input"
        value = self._value(fake, kind)
        self._note_span(program.values[value].storage, fake)
        if kind == "static" and _found_in(program.values[value].shape):
            raise UnsupportedError(f"parameter {self._name_at(position)} has a size that varies")
        sizes: list[Any] = list(fake.shape)
        for dim, size in enumerate(sizes):
            if is_symbolic(size):
                number = self._size(size)
                if isinstance(number, VaryingSize) and number.text.isidentifier():
                    self._note(number.text, size, position, dim)
        if kind == "static":
            program.parameters[self._name_at(position)] = value
        else:
            program.inputs[position] = value
        self.inputs.append(value)
        self.became[node] = Ref(value)

    def _number_argument(self, node: torch.fx.Node) -> None:
        size, position = node.meta["val"], len(self.inputs)
        self.inputs.append(-1)
        self.became[node] = number = self._size(size)
        if isinstance(number, VaryingSize) and number.text.isidentifier():
            self._note(number.text, size, position, -1)

    def _note(self, name: str, size: torch.SymInt, position: int, dim: int) -> None:
        if name not in self.found:
            source = self._source(position)
            if dim >= 0:
                source += f".size()[{dim}]"
            known = known_of(size)
            # Callers name sizes of tensors alone. Of another number torch found the bound itself:
            # parts of a whole may each be all of it, but not all of them at once.
            told = known.told if ".size()[" in source else None
            self.found[name] = OpenSize(position, dim, source, known.traced, told, known.most)

    def _note_span(self, storage: int, fake: torch.Tensor) -> None:
        """Note the bytes of an input's storage as a multiple of what the input spans of it."""
        num_bytes: Any = fake.untyped_storage().nbytes()
        if not is_symbolic(num_bytes) or storage in self.spans:
            return
        steps = [(n - 1) * step for n, step in zip(fake.shape, fake.stride(), strict=True)]
        span: Any = (1 + sum(steps)) * fake.dtype.itemsize
        traced = known_of(span).traced if is_symbolic(span) else span
        times = -(-known_of(num_bytes).traced // max(1, traced))
        self.spans[storage] = self._size(span * times)

    def _place(self, position: int) -> int:
        return self.places[position] if position < len(self.places) else position

    def _source(self, position: int) -> str:
        return self.sources[position] if position < len(self.sources) else f"argument{position}"

    def _open_sizes(self, returned: Sequence[Any]) -> dict[str, OpenSize]:
        """The open sizes that the program needs, with their places at run time.

        Or what is `returned`, as a number that the code around the graph counts on.
        """
        for storage, span in self.spans.items():
            # A view, as of a mask that is expanded: sizes of its base stand in no argument.
            known = self.program.storages[storage].size_bytes
            if isinstance(known, VaryingSize) and known.names - self.found.keys():
                self.program.storages[storage].size_bytes = span
        sizes = [*open_sizes(self.program), *_varying(returned)]
        needed = {name for size in sizes for name in size.names}
        for name in sorted(needed - self.found.keys()):
            raise UnsupportedError(
                f"its size {name} stands in no argument", hint="torch.compile(..., dynamic=False)"
            )
        return {name: at for name, at in self.found.items() if name in needed}

    def _name_at(self, position: int) -> str:
        name = self.names[position] if position < len(self.names) else ""
        name = name or f"argument{position}"
        return name if name not in self.program.parameters else f"{name}#{position}"

    def _hold(self, outputs: list[tuple[Any, Role]]) -> None:
        """Let the caller's outputs live on; their ops run once: a repeat would only add memory."""
        program = self.program
        for node, role in outputs:
            if not isinstance(node, torch.fx.Node) or not isinstance(self.became[node], Ref):
                continue
            if role.kind == "mutation":
                continue  # the new content of an input is copied there at once
            value = self._ref(node)
            storage = program.storages[program.values[value].storage]
            if storage.kind == "computed":
                program.held.append(value)
                program.calls[storage.call].once = True

    def _protect_changed(self, outputs: list[tuple[torch.fx.Node | None, Role]]) -> None:
        """Make ops run once, within the forward half, if they read what changes after that half."""
        program = self.program
        changed = {
            program.values[self.inputs[self._place(int(role.key))]].storage
            for _, role in outputs
            if role.kind == "mutation" and role.of == "input"
        }
        found = [v for i, v in enumerate(self.inputs) if i in self.written.changing and v >= 0]
        later = {program.values[v].storage for v in found} - changed
        saved = {
            program.values[v].storage
            for call in program.calls[program.seed + 1 :]
            for v in refs((call.args, call.kwargs))
        }
        maybe = [
            self.inputs[i]
            for i in {*self.written.doubted, *self.written.unsaved} & self.fixed
            if self.inputs[i] >= 0
            and (i in self.written.doubted or program.values[self.inputs[i]].storage not in saved)
        ]
        known = changed | later
        program.doubted = frozenset(v for v in maybe if program.values[v].storage not in known)
        if not changed | later:
            return
        for i, call in enumerate(program.calls):
            args = call.lean[1] if call.lean else call.args
            read = {program.values[v].storage for v in refs((args, call.kwargs))}
            if call.is_view:
                continue
            if i <= program.seed:
                call.once |= bool(read & (changed | later))
            elif read & changed:  # what is written later, autograd takes or not, as in a plain step
                raise UnsupportedError(
                    f"{call.name} in backward reads an input that forward changes"
                )

    def _add_gradients(self, found: list[int]) -> list[int]:
        """The gradients in the form in which autograd keeps them, by position of the argument."""
        program = self.program
        names = {value: name for name, value in program.parameters.items()}
        own = {i: names[self.inputs[i]] for i, v in enumerate(found) if v >= 0 and i in self.fixed}
        add_gradients(program, {name: [found[i]] for i, name in own.items()})
        # Gradients of other inputs go to another autograd node, which accepts any form.
        rest = {i: v for i, v in enumerate(found) if v >= 0 and i not in own}
        program.input_gradients.update(rest)
        made = rest | {i: program.gradients[name] for i, name in own.items()}
        return [made.get(i, -1) for i in range(len(found))]


def _found_in(shape: tuple[Any, ...]) -> bool:
    return bool(_varying(shape))


def _varying(row: Sequence[Any]) -> list[VaryingSize]:
    return [size for size in row if isinstance(size, VaryingSize)]


def _device(graph_module: torch.fx.GraphModule) -> str:
    kinds = [
        node.meta["val"].device.type
        for node in graph_module.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    return "cuda" if "cuda" in kinds else (kinds or ["cpu"])[0]
