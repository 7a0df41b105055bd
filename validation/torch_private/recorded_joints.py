"""Joint graphs noted down op by op, where nothing looks at a tensor that a step changes in place.

torch's export of a joint graph runs the step twice, each op through three layers of Python: one
that makes functional ops of those in place, one that has proxies for all tensors, and fake tensors.
A step without views of what changes needs the last one alone: forward and backward run once on fake
tensors, and a mode notes each op. The graph has the same nodes with the same notes.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch._aot_autograd import descriptors as d
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from ..autocasts import backward_autocast
from .kept_checks import returns_nothing
from .known_results import KnownResults
from .op_modes import schema_of
from .pytrees import tree_leaves
from .storage_refs import storage_key

aten = torch.ops.aten

_OTHER_NAMES = {
    aten.copy_.default: aten.copy.default,
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten.normal_.default: aten.normal_functional.default,
}
"""Ops that change their first argument -> the ones that return its new content, by another name."""

_BATCH_NORM = aten._native_batch_norm_legit.default

_DEVICE = torch.ops.prim.device.default
_ASKED = ("prim::device", "aten::size", "aten::stride", "aten::storage_offset")


class NeedsExport(Exception):
    """The step holds what only torch's own export knows how to put into a graph."""


def record_joint(
    module: nn.Module, inputs: tuple[torch.Tensor, ...], mode: FakeTensorMode
) -> torch.fx.GraphModule:
    """Forward and backward of `module`, over fakes of `mode`, as one graph like `export_joint`'s.

    Raises
    ------
    NeedsExport
        The step changes a tensor in place that has views, reads a tensor that is not given, or
        returns other than one computed scalar. Attributes that its code sets have been set.
    """
    recorder = _JointRecorder(mode)
    gradients: list[tuple[Any, torch.Tensor]] = []
    with (
        _own_tensors_of_tied(module) as parameters,
        torch.autograd.set_multithreading_enabled(False),
        _no_cache_of_casts(),
        torch.enable_grad(),
        mode,
        enable_python_dispatcher(),
    ):
        given: list[tuple[Any, torch.Tensor]] = [
            (d.ParamAOTInput(name), parameter) for name, parameter in parameters
        ]
        buffers = module.named_buffers(remove_duplicate=False)
        given += [(d.BufferAOTInput(name), buffer) for name, buffer in buffers]
        given += [(d.PlainAOTInput(i), tensor) for i, tensor in enumerate(inputs)]
        for desc, tensor in given:
            recorder.give(desc, tensor)
            if tensor.requires_grad:
                gradients.append((desc, tensor))
        with recorder:
            made = module(*inputs)
        returned = made if isinstance(made, tuple) else (made,)
        nodes, loss = [recorder.output_node(tensor) for tensor in returned], returned[0]
        if loss.numel() != 1 or [t.requires_grad for t in returned].count(True) != 1:
            raise NeedsExport("the step returns more than one scalar to derive")
        tangent = torch.empty_like(loss, memory_format=torch.contiguous_format).detach()
        tangent_desc = d.TangentAOTInput(d.PlainAOTOutput(0))
        recorder.give(tangent_desc, tangent)
        recorder.watch_backward(loss)
        with recorder, backward_autocast().entered():
            found = torch.autograd.grad(
                [loss], [tensor for _, tensor in gradients], [tangent], allow_unused=True
            )
        return recorder.finished(nodes, [desc for desc, _ in gradients], found)


@contextlib.contextmanager
def _own_tensors_of_tied(module: nn.Module) -> Iterator[list[tuple[str, nn.Parameter]]]:
    """All parameters by name, each further name of a tied one with a tensor of its own."""
    seen: set[int] = set()
    found: list[tuple[str, nn.Parameter]] = []
    replaced: list[tuple[nn.Module, str, nn.Parameter]] = []
    for name, parameter in module.named_parameters(remove_duplicate=False):
        own = parameter
        if id(parameter) in seen:
            path, _, last = name.rpartition(".")
            replaced.append((module.get_submodule(path), last, parameter))
            own = nn.Parameter(parameter.detach(), parameter.requires_grad)
        seen.add(id(parameter))
        found.append((name, own))
    owns = {id(owner): owner for owner, _, _ in replaced}
    try:
        for name, own in found:
            path, _, last = name.rpartition(".")
            owner = module.get_submodule(path)
            if id(owner) in owns:
                setattr(owner, last, own)
        yield found
    finally:
        for owner, last, parameter in replaced:
            setattr(owner, last, parameter)


@contextlib.contextmanager
def _no_cache_of_casts() -> Iterator[None]:
    """Autocast casts a weight wherever it is read, so that each cast can be an op of its own."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class _JointRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves modes untyped
    """A mode that writes down the ops that run on fake tensors as nodes of a graph."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode
        self.known = KnownResults(mode)
        self.graph = torch.fx.Graph()
        self.held = nn.Module()  # of the constants
        self.constants: dict[int, str] = {}
        self.nodes: dict[int, torch.fx.Node] = {}
        self.sharing: dict[int, list[tuple[torch.Tensor, torch.fx.Node]]] = {}  # a storage
        self.stale: set[int] = set()  # tensors whose content changed under another name
        self.changed: dict[int, torch.Tensor] = {}  # buffers, by the place among the inputs
        self.given: list[torch.fx.Node] = []
        self.made: list[torch.Tensor] = []  # an id stays its tensor's own
        self.first: torch.fx.Node | None = None  # the first op
        self.backward = False
        self.adding = False  # the engine adds up gradients, between two autograd nodes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so takes time at every op

    def give(self, desc: Any, tensor: torch.Tensor) -> None:
        """Note down an input of the graph."""
        if not isinstance(tensor, FakeTensor):
            raise NeedsExport("an input is no plain fake tensor")
        tangent = isinstance(desc, d.TangentAOTInput)
        place = self.graph.inserting_before(self.first) if self.first is not None else None
        with place or contextlib.nullcontext():
            node = self.graph.placeholder(
                "tangents_1" if tangent else f"primals_{len(self.given) + 1}"
            )
        node.meta.update(desc=desc, val=tensor)
        self.given.append(node)
        if id(tensor) in self.nodes and isinstance(desc, d.BufferAOTInput):
            self.nodes[id(tensor)] = node  # a further name
            self.sharing[storage_key(tensor)].append((tensor, node))
        else:
            self._keep(tensor, node)

    def output_node(self, made: Any) -> torch.fx.Node:
        """The node of an output of the step."""
        node = self.nodes.get(id(made)) if isinstance(made, torch.Tensor) else None
        if node is None or node.op == "placeholder" or made._is_view() or id(made) in self.stale:
            raise NeedsExport("the step returns other than what it computed")
        return node

    def watch_backward(self, loss: torch.Tensor) -> None:
        """Have the nodes of autograd say when they run: the ops in between add up gradients."""
        self.backward = self.adding = True
        waiting: list[Any] = [loss.grad_fn]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            node.register_prehook(self._enter)
            node.register_hook(self._leave)
            for source, _ in node.next_functions:
                if source is not None and source not in seen:
                    seen.add(source)
                    waiting.append(source)

    def _enter(self, _gradients: Any) -> None:
        self.adding = False

    def _leave(self, _made: Any, _gradients: Any) -> None:
        self.adding = True

    def finished(
        self,
        returned: list[torch.fx.Node],
        descs: list[Any],
        gradients: tuple[torch.Tensor | None, ...],
    ) -> torch.fx.GraphModule:
        """The graph, with its outputs."""
        changed = [
            (n.meta["desc"], self.changed[i]) for i, n in enumerate(self.given) if i in self.changed
        ]
        outputs: list[torch.fx.Node | None] = [self.nodes[id(tensor)] for _, tensor in changed]
        outputs += returned
        for gradient in gradients:
            node = None if gradient is None else self.nodes.get(id(gradient))
            if gradient is not None and (node is None or id(gradient) in self.stale):
                raise NeedsExport("a gradient that no op made")
            outputs.append(node)
        end = self.graph.output(tuple(outputs))
        end.meta["desc"] = [
            *(d.InputMutationAOTOutput(desc) for desc, _ in changed),
            *(d.PlainAOTOutput(i) for i in range(len(returned))),
            *(d.GradAOTOutput(desc) for desc in descs),
        ]
        return _LazyGraphModule(self.held, self.graph)  # its code is never asked for

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run `func` on fakes, and note it down."""
        kwargs = kwargs or {}
        if func is _DEVICE and type(args[0]) is FakeTensor:
            return args[0].fake_device
        if func._schema.name in _ASKED:
            return func(*args, **kwargs)
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            raise NeedsExport("hooks on saved tensors, as of a checkpoint, which runs ops again")
        schema = schema_of(func)
        if _returning(func) is not None:
            return self._in_place(func, args, kwargs)
        if func is _BATCH_NORM:
            return self._batch_norm(args, kwargs)
        if schema is None or schema.is_mutable:
            raise NeedsExport(f"{func.name()} changes a tensor")
        if _is_composite(func) and not _has_kernel(func, args):
            with self:
                whole = func.decompose(*args, **kwargs)
            if whole is not NotImplemented:
                return whole
        args = _without_defaults(func, args)
        left_out = _none_by_default(func)
        said = {k: v for k, v in kwargs.items() if v is not None or k not in left_out}
        noted = self._noted(args), self._noted(said)
        made = self.known.run(func, args, kwargs)
        fresh = func is aten.lift_fresh.default
        node = self._write(aten.lift_fresh_copy.default if fresh else func, noted, made)
        if isinstance(made, torch.Tensor):
            self._keep(made, node)
            return made
        if returns_nothing(func):
            return None
        if not isinstance(made, tuple | list):
            raise NeedsExport(f"{func.name()} returns no tensor")
        for position, part in enumerate(made):
            if isinstance(part, torch.Tensor):
                item = self._write(operator.getitem, ((node, position), {}), part)
                self._keep(part, item)
            elif part is not None:
                raise NeedsExport(f"{func.name()} returns a number")
        return made

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        """Note down the op that returns what `func` writes into its first argument."""
        target = _returning(func)
        for own, other in zip(
            func._schema.arguments[len(args) :], target._schema.arguments[len(args) :], strict=True
        ):
            if own.kwarg_only or other.has_default_value() or own.name in kwargs:
                break
            args = (*args, own.default_value)
        noted = self._noted(args), self._noted(kwargs)
        made = self.known.run(target, args, kwargs)
        changed: torch.Tensor = args[0]
        self._refuse_to_change(changed, made)
        self._change(changed, made, self._write(target, noted, changed))
        return changed

    def _batch_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note down a batch norm as the op that returns the new running statistics."""
        target = aten._native_batch_norm_legit_functional.default
        buffers = args[3:5]
        if args[5] is not True or not all(isinstance(held, torch.Tensor) for held in buffers):
            raise NeedsExport("a batch norm with its running statistics")
        noted = self._noted(args), self._noted(kwargs)
        *found, mean, variance = target(*args, **kwargs)
        for held, made in zip(buffers, (mean, variance), strict=True):
            self._refuse_to_change(held, made)
        node = self._write(target, noted, (*found, *buffers))
        for position, part in enumerate(found):
            self._keep(part, self._write(operator.getitem, ((node, position), {}), part))
        for position, (held, made) in enumerate(zip(buffers, (mean, variance), strict=True), 3):
            item = self._write(operator.getitem, ((node, position), {}), held)
            self._change(held, made, item)
        return tuple(found)

    def _refuse_to_change(self, held: torch.Tensor, made: torch.Tensor) -> None:
        """Raise where `held` has views, or its new content, `made`, is laid out in another way."""
        node = self.nodes.get(id(held))
        if node is None or not isinstance(held, FakeTensor):
            raise NeedsExport("a tensor from elsewhere is changed")
        others = [tensor for tensor, own in self.sharing[storage_key(held)] if own is not node]
        if any(other is held or _layout(other) != _layout(held) for other in others):
            raise NeedsExport("a tensor with views is changed")
        for _, own in self.sharing[storage_key(held)]:
            if own.op == "placeholder" and not isinstance(own.meta["desc"], d.BufferAOTInput):
                raise NeedsExport("a parameter or an input is changed")
        whole = held.untyped_storage().nbytes() == made.untyped_storage().nbytes()
        if _layout(held) != _layout(made) or not whole or held.storage_offset():
            raise NeedsExport("a tensor is changed to another type, or in part")

    def _change(self, held: torch.Tensor, spare: torch.Tensor, node: torch.fx.Node) -> None:
        """Let `node` stand for `held` from now on; `spare` is what `held` was before."""
        for tensor, seen in self.sharing[storage_key(held)]:
            if seen.op == "placeholder":  # perhaps of a buffer that `held` is another name of
                self.changed[self.given.index(seen)] = held
            seen.meta["val"] = spare
            if seen.target is operator.getitem:
                source: Any = seen.args[0]
                parts = list(source.meta["val"])
                parts[seen.args[1]] = spare  # type: ignore[index]
                source.meta["val"] = tuple(parts)
            if tensor is not held:
                self.stale.add(id(tensor))
        self.made.append(spare)
        self.nodes[id(held)] = node
        self.sharing[storage_key(held)] = [(held, node)]

    def _write(self, target: Any, noted: tuple[Any, Any], made: Any) -> torch.fx.Node:
        node = self.graph.call_function(target, *noted)
        self.first = self.first or node
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        if self.backward and not self.adding:
            number = torch._C._current_autograd_node()._sequence_nr()
        node.meta.update(
            val=made,
            seq_nr=number,
            partitioner_tag="is_backward" if self.backward else "is_forward",
        )
        if self.backward and self.adding:
            node.meta["stack_trace"] = "Gradient addition"
        return node

    def _keep(self, tensor: torch.Tensor, node: torch.fx.Node) -> None:
        if not isinstance(tensor, FakeTensor) or id(tensor) in self.nodes:
            raise NeedsExport("an op returns its argument")
        self.nodes[id(tensor)] = node
        self.sharing.setdefault(storage_key(tensor), []).append((tensor, node))
        self.made.append(tensor)

    def _constant(self, tensor: torch.Tensor) -> torch.fx.Node:
        """A new node for a real tensor that the step reads from elsewhere."""
        if isinstance(tensor, FakeTensor) or type(tensor) is not torch.Tensor:
            raise NeedsExport("a tensor that is neither given nor computed")
        name = self.constants.setdefault(id(tensor), f"_tensor_constant{len(self.constants)}")
        setattr(self.held, name, tensor)
        self.made.append(tensor)
        return self.graph.get_attr(name)

    def _noted(self, tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            if id(tree) in self.stale:
                raise NeedsExport("a tensor is read that was changed under another name")
            return self.nodes.get(id(tree)) or self._constant(tree)
        if isinstance(tree, tuple | list):
            return type(tree)(self._noted(item) for item in tree)
        if isinstance(tree, dict):
            return {key: self._noted(item) for key, item in tree.items()}
        if isinstance(tree, torch.SymInt | torch.SymFloat | torch.SymBool | torch.Generator):
            raise NeedsExport("a number that is left open, or a generator")
        return tree


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device


@functools.cache
def _returning(func: Any) -> Any:
    """The op that returns what `func` writes into its first argument; ``None`` if there is none."""
    if func in _OTHER_NAMES:
        return _OTHER_NAMES[func]
    name = func._schema.name.partition("::")[2]
    if func.namespace != "aten" or not name.endswith("_") or torch.Tag.inplace_view in func.tags:
        return None
    found = getattr(getattr(aten, name[:-1], None), func._overloadname, None)
    if found is None or found._schema.is_mutable:
        return None
    own, other = func._schema, found._schema
    same = [a.name for a in own.arguments] == [a.name for a in other.arguments]
    changed = [a.alias_info is not None for a in own.arguments]
    alone = len(other.returns) == 1 and other.returns[0].alias_info is None
    return found if same and alone and changed == [True, *[False] * (len(changed) - 1)] else None


@functools.cache
def _none_by_default(func: Any) -> frozenset[str]:
    """The arguments of an op that are ``None`` where they are not given."""
    arguments = schema_of(func).arguments
    return frozenset(a.name for a in arguments if a.has_default_value() and a.default_value is None)


def _without_defaults(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`args` without the last ones, where they are what the op takes if they are not given."""
    arguments = schema_of(func).arguments
    while args and arguments[len(args) - 1].has_default_value():
        default = arguments[len(args) - 1].default_value
        if isinstance(args[-1], torch.Tensor) or type(args[-1]) is not type(default):
            break
        if args[-1] != default:
            break
        args = args[:-1]
    return args


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether torch can take the op apart above its kernels."""
    return _is_registered(func, DispatchKey.CompositeImplicitAutograd)


def _has_kernel(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the op has a kernel of its own on the device of its first tensor."""
    device = next((t.device.type for t in tree_leaves(args) if isinstance(t, torch.Tensor)), None)
    if device is None:
        return False
    key = torch._C._dispatch_key_for_device(device)
    return _is_registered(func, torch._C._parse_dispatch_key(key))


@functools.cache
def _is_registered(func: Any, key: Any) -> bool:
    name = func.name()
    known = torch._C._dispatch_has_kernel(
        name
    )  # some that Python sees are no ops of the dispatcher
    return bool(known and torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
