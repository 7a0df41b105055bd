"""From a traced joint graph to a program: roles of inputs and outputs, storages, views, effects."""

from __future__ import annotations

import operator
from typing import Any

import torch

from schedsim.errors import UnsupportedError

from ..guards.asking import Expect
from ..torch_private.fake_tensors import is_symbolic, size_text
from ..torch_private.graph_roles import (
    Role,
    is_backward,
    is_gradient_sum,
    output_roles,
    placeholder_role,
)
from ..torch_private.op_modes import OpOverload, schema_name, schema_of
from ..torch_private.storage_refs import storage_key
from .accumulation import add_in_place
from .checks import CheckOp, check_of, checks_before_backward, order_checks
from .cond_branches import COND, CondBranches
from .dropout import Factors, as_in_eager
from .effects import add_gradients, add_updates, insert_all, order_draws
from .fronts import WAY_OUT, Traced
from .naming import Namer
from .program import COPIES_OF_STORAGES, Call, Program, Ref, Storage, Value, refs
from .skeleton import Skeleton
from .varying_sizes import VaryingSize, broadcast, product
from .writing_ops import WritingOp

aten = torch.ops.aten

# These ops give the same tensor another name: nothing runs.
_ALIASES = (aten.detach.default, aten.alias.default)

_COMMUNICATE = ("c10d", "c10d_functional", "_c10d_functional", "_dtensor", "symm_mem")
"""Namespaces of ops that all ranks run together."""

# They return what they are given, once its message has come; a trace does not tell.
_WAITS = tuple(
    op.default
    for op in (getattr(torch.ops._c10d_functional, "wait_tensor", None),)
    if op is not None
)


def build_program(traced: Traced, skeleton: Skeleton) -> Program:
    """The program of a traced step.

    Raises
    ------
    UnsupportedError
        The step returns no scalar that needs a gradient, or holds a construct that cannot be
        scheduled; the message names it.
    """
    return _StepProgramBuilder(traced, skeleton).build()


class NoLossError(UnsupportedError):
    """The step returns something that is no loss: no level can plan it."""


class ProgramBuilder:
    """Builds calls, values and storages from the nodes of a joint graph.

    Parameters
    ----------
    device
        The kind of device whose bytes count.
    """

    def __init__(self, traced: Traced, device: str) -> None:
        self.graph_module = traced.graph_module
        self.device = device
        self.renamed = traced.renamed
        self.program = Program()
        self.namer = Namer(traced)
        self.by_key: dict[int, int] = {}  # storage of the trace -> storage of the program
        # The result for each node of the trace: a reference, a constant, or a tuple of these.
        self.became: dict[torch.fx.Node, Any] = {}
        self.factors: Factors = {}

    def _value(self, fake: torch.Tensor, kind: str, call: int = -1, position: int = 0) -> int:
        program = self.program
        if fake.layout is not torch.strided:
            raise UnsupportedError(
                f"an op makes a sparse tensor ({fake.layout}), of a size that depends on data",
                hint="sparse=False for an embedding",
            )
        key = storage_key(fake)
        if key not in self.by_key:
            self.by_key[key] = len(program.storages)
            here = fake.device.type == self.device
            size = self._size(fake.untyped_storage().nbytes()) if here else 0
            program.storages.append(Storage(size, kind, call))
        program.values.append(
            Value(
                storage=self.by_key[key],
                shape=tuple(map(self._size, fake.shape)),
                stride=tuple(map(self._size, fake.stride())),
                dtype=fake.dtype,
                device=fake.device,
                call=call,
                position=position,
            )
        )
        return len(program.values) - 1

    def _see_view(self, fake: torch.Tensor, target: Any, position: int, args: Any) -> None:
        """Take a view to be in its argument's storage, by the op's schema.

        A pass of torch that replaces a node (numbers of a model become tensors where sizes are
        dynamic) leaves views of it with the storage of the node that is gone.
        """
        schema = schema_of(target)
        alias = schema.returns[position].alias_info if position < len(schema.returns) else None
        if alias is None or alias.is_write or storage_key(fake) in self.by_key:
            return
        for argument, given in zip(schema.arguments, args, strict=False):
            source = argument.alias_info
            if isinstance(given, Ref) and source and source.before_set == alias.before_set:
                self.by_key[storage_key(fake)] = self.program.values[given.value].storage
                return

    def _size(self, size: Any) -> Any:
        """An ``int``, or a formula if the trace left the size open."""
        if not is_symbolic(size):
            return size
        text = size_text(size) if isinstance(size, torch.SymInt) else None
        if text is None:
            raise UnsupportedError(
                "a size is computed from data, which no plan can foresee", hint=WAY_OUT
            )
        return int(text) if text.lstrip("-").isdecimal() else VaryingSize(text)

    def _number(self, node: torch.fx.Node) -> Any:
        """The result of a node that computes a number from sizes."""
        made = node.meta["val"]
        if isinstance(made, torch.SymInt):
            return self._size(made)
        # Sums of floats depend on the order of operations: the operations of Python are repeated.
        module = {"_operator": "operator", "math": "math", "torch": "torch"}.get(
            getattr(node.target, "__module__", "")
        )
        if not isinstance(made, torch.SymFloat) or module is None or node.kwargs:
            raise UnsupportedError(
                f"{self.namer.place(node)} computes a number from data, which no plan can foresee",
                hint=WAY_OUT,
            )
        name = getattr(node.target, "__name__", "")
        given = ", ".join(repr(self._arguments(arg)) for arg in node.args)
        return VaryingSize(f"{module}.{name}({given})")

    def _constant(self, node: torch.fx.Node) -> None:
        held = self.graph_module
        for part in str(node.target).split("."):
            held = getattr(held, part)
        if isinstance(held, torch.Generator):
            raise UnsupportedError(
                "a step draws from a torch.Generator of its own, which a graph would not advance",
                hint="draw from torch's own generator, or in the loop as an input; "
                "or level='block'",
            )
        if isinstance(held, torch.fx.GraphModule) and all(u.target is COND for u in node.users):
            self.became[node] = held
            return
        if not isinstance(held, torch.Tensor):
            raise UnsupportedError(
                f"{self.namer.place(node)} holds a graph of its own ({_user_name(node)}), which no "
                "plan goes into",
                hint=WAY_OUT,
            )
        value = self._value(held, "static")
        self.program.constants[value] = held
        self.became[node] = Ref(value)

    def _ref(self, node: torch.fx.Node) -> int:
        found = self.became[node]
        assert isinstance(found, Ref), node
        return found.value

    # -- calls ------------------------------------------------------------------------------------

    def _arguments(self, tree: Any) -> Any:
        if isinstance(tree, torch.fx.Node):
            return self.became[tree]
        if isinstance(tree, tuple):
            return tuple(self._arguments(item) for item in tree)
        if isinstance(tree, list):
            return [self._arguments(item) for item in tree]
        if isinstance(tree, dict):
            return {key: self._arguments(item) for key, item in tree.items()}
        return tree

    def _function(self, node: torch.fx.Node, *, is_loss: bool) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            self.became[node] = self.became[source][index]  # type: ignore[index]
            return
        if is_symbolic(node.meta.get("val")):
            self.became[node] = self._number(node)
            return
        args, kwargs = self._arguments(node.args), self._arguments(dict(node.kwargs))
        check = check_of(node)
        if check is not None:
            self._check(node, check, args, kwargs)
            return
        if node.target in _ALIASES:
            self.became[node] = args[0]
            return
        target: Any = node.target
        tags_of = target
        if target is COND:
            chooses, if_true, if_false, given = args
            target, args = CondBranches(if_true, if_false), (chooses, *given)
        elif (writing := WritingOp.of(node)) is not None:
            target, args, tags_of = writing, (), writing.op
        elif not isinstance(target, OpOverload):
            raise UnsupportedError(
                f"{self.namer.place(node)} uses {target}, which is no plain tensor op",
                hint=WAY_OUT,
            )
        elif schema_of(target).is_mutable:
            raise UnsupportedError(
                f"{self.namer.place(node)} writes in place by {target}, which tracing left in",
                hint="use the form of the op that returns a new tensor",
            )
        program = self.program
        index = len(program.calls)
        is_op = isinstance(target, OpOverload)
        has_tags = isinstance(tags_of, OpOverload)
        call = Call(
            name=schema_name(tags_of).partition("::")[2] if has_tags else "cond",
            target=target,
            args=args,
            kwargs=kwargs,
            phase=_phase(node, is_loss),
            random=has_tags and _draws(tags_of, args, kwargs),
            module=self.namer.module(node),
            is_gradient_sum=is_gradient_sum(node),
        )
        made = node.meta["val"]
        call.is_tuple = not isinstance(made, torch.Tensor)
        arguments = {program.values[v].storage for v in refs((args, kwargs))}
        became: list[Any] = []
        masked = _masked_out(target, args, kwargs) if is_op else ()
        for position, fake in enumerate(made if call.is_tuple else (made,)):
            if position in masked:
                call.outputs.append(-1)
                became.append(None)
            elif isinstance(fake, torch.Tensor):
                if target in _WAITS:
                    self.by_key[storage_key(fake)] = program.values[args[0].value].storage
                elif is_op:
                    self._see_view(fake, target, position, args)
                value = self._value(fake, "computed", index, position)
                call.outputs.append(value)
                became.append(Ref(value))
            else:  # None, or a number that is the same in every run
                self._refuse_dynamic(fake, node)
                call.outputs.append(-1)
                became.append(fake)
        # With a generator of its own, a repeat would draw other numbers.
        call.once = isinstance(kwargs.get("generator"), torch.Generator)
        call.once = call.once or (has_tags and _runs_once(tags_of))
        _correct_sizes(program, call)
        shared = [program.values[v].storage in arguments for v in call.outputs if v >= 0]
        call.is_view = bool(shared) and all(shared)
        if any(shared) and not call.is_view:
            raise UnsupportedError(
                f"{self.namer.place(node)}: {target} returns an input and a new tensor at once",
                hint=WAY_OUT,
            )
        _make_lean(call)
        as_in_eager(program, call, self.factors)
        program.calls.append(call)
        self.became[node] = tuple(became) if call.is_tuple else became[0]

    def _check(self, node: torch.fx.Node, check: CheckOp, args: Any, kwargs: Any) -> None:
        """Put a call of an op without output where the trace has it."""
        call = Call(
            name=schema_name(node.target).partition("::")[2],
            target=check,
            args=args,
            kwargs=kwargs,
            phase=_phase(node, False),
            once=True,
            module=self.namer.module(node),
        )
        self.program.calls.append(call)
        self.became[node] = None

    def _refuse_dynamic(self, value: object, node: torch.fx.Node) -> None:
        if is_symbolic(value):
            raise UnsupportedError(
                f"{self.namer.place(node)} computes a number from data, which no plan can foresee",
                hint=WAY_OUT,
            )

    def _put_seed(self, name: str) -> None:
        """Put the call between forward and backward: the hand-over to autograd.

        Every call that depends on it stands in the backward half of every legal schedule.
        """
        program = self.program
        given = set(program.tangents)
        for call in program.calls:  # calls that a pass of torch inserted may not name their half
            if given & set(refs((call.args, call.kwargs))):
                call.phase = "backward"
                given.update(call.outputs)
        at = next(
            (i for i, call in enumerate(program.calls) if call.phase == "backward"),
            len(program.calls),
        )
        seed = Call(
            name=name,
            target=seed_gradient,
            args=tuple(map(Ref, program.outputs)),
            kwargs={},
            outputs=list(program.tangents),
            is_tuple=True,
            phase="backward",
            once=True,
        )
        insert_all(program, [(at, seed)])
        program.seed = at
        seed.tokens += (*_draws_for_nothing(program), *checks_before_backward(program))


class _StepProgramBuilder(ProgramBuilder):
    def __init__(self, traced: Traced, skeleton: Skeleton) -> None:
        super().__init__(traced, skeleton.device)
        self.skeleton = skeleton

    def build(self) -> Program:
        graph = self.graph_module.graph
        outputs = output_roles(graph)
        loss = self._loss_node(outputs)
        needed = needed_for(graph, [node for node, _ in outputs if node is not None])
        for node in graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node in needed and node.op == "get_attr":
                self._constant(node)
            elif node in needed and node.op == "call_function":
                self._function(node, is_loss=_base(node) is _base(loss))
        program = self.program
        program.outputs = [self._ref(loss)]
        program.held = [*program.outputs, *program.tangents]  # held by the caller and by autograd
        # The caller holds what the first run returns; another run would only add memory.
        made_loss = program.storages[program.values[program.loss].storage].call
        if made_loss < 0:
            raise UnsupportedError(
                "the loss is an input or a parameter itself", hint="return something computed"
            )
        program.calls[made_loss].once = True
        self._put_seed("loss.grad")
        mutations: list[tuple[int, int]] = []
        gradients: dict[str, list[int]] = {}
        for node, role in outputs:
            if node is None or role.kind == "output":
                continue
            value = self._ref(node)
            if role.kind == "mutation" and role.of != "other":
                mutations.append((self._target_of(role), value))
            elif role.kind == "gradient" and role.of == "parameter":
                name = self._name(role)
                gradients.setdefault(name, []).append(value)
            elif role.kind == "gradient" and role.of == "input":
                program.input_gradients[int(role.key)] = value
            else:
                raise UnsupportedError(
                    f"the step has an output that cannot be scheduled: {role.key}", hint=WAY_OUT
                )
        expects = self._put_expects(outputs)
        ends = [program.calls[i] for i in checks_before_backward(program)]
        add_updates(program, mutations, expects, ends)
        add_gradients(program, gradients)
        add_in_place(program)
        order_draws(program)
        order_checks(program)
        self.namer.name(program)
        return program

    def _loss_node(self, outputs: list[tuple[Any, Role]]) -> torch.fx.Node:
        # After the loss come the tensors of which Python asked something.
        plain = [n for n, role in outputs if role.kind == "output" and role.key == 0]
        shapes = [tuple(node.meta["val"].shape) for node in plain if node is not None]
        if len(plain) != 1 or len(shapes) != 1 or shapes[0] not in ((), (1,)):
            raise NoLossError(
                f"the step must return one scalar, but returns tensors of shapes {shapes}",
                hint="pass loss=, a function of the model's output (and of the last inputs)",
            )
        roles = [placeholder_role(n) for n in self.graph_module.graph.nodes]
        if not any(role.kind == "tangent" for role in roles):
            raise NoLossError(
                "the loss needs no gradient, so that there is no backward pass to schedule",
                hint="is some parameter left with requires_grad, and the loss made from it?",
            )
        node: torch.fx.Node = plain[0]
        return node

    # -- values -----------------------------------------------------------------------------------

    def _placeholder(self, node: torch.fx.Node) -> None:
        program = self.program
        role = placeholder_role(node)
        fake = node.meta["val"]
        if role.kind in ("parameter", "buffer"):
            name = self._name(role)
            table = program.parameters if role.kind == "parameter" else program.buffers
            if name not in table:
                table[name] = self._value(fake, "static")
            self.became[node] = Ref(table[name])
        elif role.kind == "input":
            program.inputs[int(role.key)] = self._value(fake, "input")
            self.became[node] = Ref(program.inputs[int(role.key)])
        elif role.kind == "tangent":
            program.tangents.append(self._value(fake, "computed"))
            self.became[node] = Ref(program.tangents[-1])
        else:
            raise UnsupportedError(
                f"the step has an input that cannot be scheduled: {role.key}", hint=WAY_OUT
            )

    def _name(self, role: Role) -> str:
        """Name in the model of the parameter or buffer with this `role`."""
        key = str(role.key)
        return self.skeleton.canonical[self.renamed.get(key, key)]

    def _target_of(self, role: Role) -> int:
        if role.of == "input":
            return self.program.inputs[int(role.key)]
        table = self.program.parameters if role.of == "parameter" else self.program.buffers
        return table[self._name(role)]

    def _put_expects(self, outputs: list[tuple[Any, Role]]) -> list[Call]:
        """Put calls that repeat Python's questions, each as soon as its tensors exist."""
        questions = self.skeleton.step.questions
        asked = {role.key: node for node, role in outputs if role.kind == "output"}
        program, position, inserted = self.program, 1, []
        for question in questions:
            num = sum(question.is_tensor)
            values = [self._ref(asked[position + k]) for k in range(num)]
            position += num
            call = Call(
                name="expect",
                target=Expect(question),
                args=tuple(map(Ref, values)),
                kwargs={},
                phase="forward",
                once=True,
            )
            at = max((program.values[v].call for v in values), default=-1) + 1
            inserted.append((at, call))
        insert_all(program, inserted)
        made = [call for _, call in inserted]
        if made:
            # Another answer must end the step before the loss is handed over.
            seed = program.calls[program.seed]
            seed.tokens += tuple(i for i, c in enumerate(program.calls) if c.name == "expect")
        return made


def seed_gradient(*outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Stands for the hand-over to autograd, which returns the gradients of `outputs`."""
    raise AssertionError("the runtime replaces this call")


def needed_for(graph: torch.fx.Graph, outputs: list[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes that the outputs depend on; used only to test membership.

    An op whose numbers nothing reads still draws them, and leaves the generator where later ops
    find it. An op without output still checks what it is given.
    """
    others = [node for node in graph.nodes if _is_draw(node) or check_of(node) is not None]
    stack = [*outputs, *others]
    seen = set(stack)
    while stack:
        for node in stack.pop().all_input_nodes:
            if node not in seen:
                seen.add(node)
                stack.append(node)
    return seen


def _draws_for_nothing(program: Program) -> list[int]:
    """The calls whose numbers nothing reads, which forward draws all the same."""
    read = {v for call in program.calls for v in refs((call.args, call.kwargs))}
    return [
        i
        for i, call in enumerate(program.calls[: program.seed])
        if call.random and not read.intersection(call.outputs)
    ]


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """The node that computes the value, behind getitems and aliases."""
    while node.target is operator.getitem or node.target in _ALIASES:
        node = node.all_input_nodes[0]
    return node


def _user_name(node: torch.fx.Node) -> str:
    """The op that is given `node`, as people write it."""
    target = next(iter(node.users)).target
    return f"torch.{getattr(target, '__name__', target)}"


def _phase(node: torch.fx.Node, is_loss: bool) -> str:
    if is_loss:
        return "loss"
    return "backward" if is_backward(node) else "forward"


def _is_draw(node: torch.fx.Node) -> bool:
    made = isinstance(node.target, OpOverload) and not is_backward(node)
    return made and _draws(node.target, node.args, dict(node.kwargs))  # type: ignore[arg-type]


def _draws(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a run changes the random state.

    Attention ops are tagged as random even without dropout, so that arguments decide.
    """
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    arguments = schema_of(target).arguments
    names = [argument.name for argument in arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given = defaults | given
    if given.get("dropout_p", 1) == 0 or given.get("train", True) is False:
        return False
    return not (target is aten.native_dropout.default and given["p"] == 0)


def communicates(target: Any) -> bool:
    """Whether all ranks run this op together."""
    return str(getattr(target, "namespace", "")) in _COMMUNICATE


def _runs_once(target: OpOverload) -> bool:
    """Whether other ranks wait for each run of it, or a second run may give other bits."""
    tag = getattr(torch.Tag, "nondeterministic_bitwise", None)  # not of every torch
    return communicates(target) or (tag is not None and tag in target.tags)


def _masked_out(
    target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, ...]:
    """Positions of the gradients that the op is asked not to compute.

    Some fakes of such ops return these gradients all the same.
    """
    names = [argument.name for argument in schema_of(target).arguments]
    mask = (dict(zip(names, args, strict=False)) | kwargs).get("output_mask", ())
    return tuple(position for position, wanted in enumerate(mask) if not wanted)


# These reduce their full-sized result in its own storage, and return a scalar that holds all of it
# (aten/src/ATen/native/Loss.cpp); shapes do not show that.
_FULL_SIZED = (
    aten.mse_loss.default,
    aten.smooth_l1_loss.default,
    aten.soft_margin_loss.default,
    aten.binary_cross_entropy.default,
)


def _correct_sizes(program: Program, call: Call) -> None:
    """Count the storage that the kernel really returns, if tracing shows another size."""
    if call.target in _FULL_SIZED:
        shapes = [program.values[v].shape for v in refs(call.args[:2])]
        storage = program.storages[program.values[call.outputs[0]].storage]
        itemsize = program.values[call.outputs[0]].dtype.itemsize
        storage.size_bytes = product([*broadcast(shapes), itemsize])
    if call.target in COPIES_OF_STORAGES:
        [first, *_] = refs(call.args[:1])
        storage = program.storages[program.values[call.outputs[0]].storage]
        storage.size_bytes = program.storages[program.values[first].storage].size_bytes


def _make_lean(call: Call) -> None:
    """Make only the first run of BatchNorm in training update its statistics.

    The functional op returns new running statistics besides the output, which is normalised by the
    batch's own. A run whose statistics nothing reads takes the form without them, so that
    recomputing neither reads nor changes the running statistics. The backward gets them but ignores
    them in training.
    """
    if call.target is aten._native_batch_norm_legit_functional.default and call.args[5] is True:
        x, weight, bias, _mean, _var, training, momentum, eps = call.args
        call.optional = (3, 4)
        call.lean = (
            aten._native_batch_norm_legit.no_stats,
            (x, weight, bias, training, momentum, eps),
        )
    if call.target is aten.native_batch_norm_backward.default and call.args[7] is True:
        args = list(call.args)
        args[3] = args[4] = None
        call.args = tuple(args)
