"""What a forward keeps for its backward: saved tensors, and views of inputs noted by place."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..torch_private.async_results import arrived
from ..torch_private.pytrees import tree_flatten, tree_map_only
from ..torch_private.storage_refs import (
    StorageWeakRef,
    share_of,
    spread_as,
    storage_key,
    weakly,
)


@dataclass
class BundleState:
    """Where a bundle finds its inputs while its backward runs, and leaves their gradients.

    `given`: gradients of the block's output, which the backward takes out. `summing`: parameters
    to whose gradients the backward adds, by the engine's own sums. `held`: the tensors that
    the bundle keeps, where they may be copied to the host. `kept`: the storages that it keeps, or
    will look for, by their keys. The references hold no memory; but while they last, no storage
    made after one is freed gets its key.
    """

    inputs: Mapping[int, list[Any]] | None = None
    given: list[Tensor | None] = field(default_factory=list)
    summing: tuple[nn.Parameter, ...] = ()
    resident: frozenset[int] = frozenset()
    gradients: dict[int, list[Tensor | None]] = field(default_factory=dict)
    held: list[weakref.ref[HeldContent]] = field(default_factory=list)
    kept: dict[int, StorageWeakRef] = field(default_factory=dict)

    def keep(self, tensor: Tensor) -> None:
        """Note that the bundle keeps the storage of `tensor`, or will look for it."""
        key = storage_key(tensor)
        if key not in self.kept:
            self.kept[key] = weakly(tensor)


class HeldContent:
    """A saved tensor in a place where it can be taken out and put back."""

    __slots__ = ("__weakref__", "content")

    def __init__(self, content: Any) -> None:
        self.content = content  # a tensor, a `Place`, or None while the tensor is elsewhere

    def take_from(self, number: int, value: Any) -> None:
        """Hold the tensor itself, where it is a view of this value."""
        if isinstance(self.content, Place) and self.content.value == number:
            self.content = self.content.of(leaves_of(value))


@dataclass(frozen=True, slots=True)
class Place:
    """A saved tensor that is a view of an input: number of the value, its leaf, and the view."""

    value: int
    leaf: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, leaves: Sequence[Any]) -> Tensor:
        """The view of the value's leaf."""
        source = share_of(leaves[self.leaf])
        return source.as_strided(self.size, self.stride, self.offset)


@dataclass
class Bundle:
    """The tensors that a forward kept: the autograd graph, held by its outlet."""

    outlet: Any  # the edge where its backward starts, None where no gradient flows
    takes: tuple[int, ...]  # the leaves of the output whose gradients go in there
    cell: BundleState


@dataclass(frozen=True, slots=True)
class Spread:
    """A place whose tensor is this rank's share of one that is spread over ranks."""

    place: Place
    spread: Callable[[Tensor], Tensor]


def _looked_up(place: Place, cell: BundleState) -> Tensor:
    assert cell.inputs is not None
    return place.of(cell.inputs[place.value])


def packing(
    places: Mapping[int, tuple[int, int, torch.dtype]], cell: BundleState
) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
    """Pack and unpack for saved tensors; those that are views of `places` are noted by place."""

    def pack(tensor: Tensor) -> Any:
        # Detached: an output saved by its own node would keep that node alive, by a reference
        # cycle.
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.detach()
        share = share_of(tensor)
        cell.keep(share)
        place = _placed(share, places)
        if place is None:
            return tensor.detach()
        return place if share is tensor else Spread(place, spread_as(tensor))

    def unpack(packed: Any) -> Tensor:
        if isinstance(packed, Spread):
            return packed.spread(_looked_up(packed.place, cell))
        return packed if not isinstance(packed, Place) else _looked_up(packed, cell)

    return pack, unpack


def holding(
    places: Mapping[int, tuple[int, int, torch.dtype]], cell: BundleState
) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
    """Pack and unpack for tensors that may be copied to the host in between."""

    def pack(tensor: Tensor) -> Any:
        content: Any = tensor.detach()
        if tensor.layout == torch.strided and not (tensor.is_conj() or tensor.is_neg()):
            cell.keep(tensor)
            content = _placed(tensor, places) or content
        held = HeldContent(content)
        cell.held.append(weakref.ref(held))
        return held

    def unpack(held: Any) -> Tensor:
        content = held.content
        assert content is not None, "a bundle is read while it is in host memory"
        return _looked_up(content, cell) if isinstance(content, Place) else content

    return pack, unpack


def _placed(tensor: Tensor, places: Mapping[int, tuple[int, int, torch.dtype]]) -> Place | None:
    """`tensor` as a view of one of the values in `places`, by storage."""
    found = places.get(storage_key(tensor))
    if found is None or found[2] != tensor.dtype:
        return None
    view = (tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
    return Place(found[0], found[1], *view)


def place_in(cell: BundleState, value: int, out: Any) -> None:
    """Take what a bundle keeps of its part's own output from there, as the output may leave."""
    places = {
        storage_key(leaf): (value, i, leaf.dtype)
        for i, leaf in enumerate(leaves_of(out))
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided
    }
    for reference in cell.held:
        held = reference()
        if held is not None and isinstance(held.content, Tensor):
            held.content = _placed(held.content, places) or held.content


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of a tree; most trees are a single tensor."""
    return [tree] if isinstance(tree, Tensor) else tree_flatten(tree)[0]


def detached(tree: Any) -> Any:
    """The tree with its tensors detached from autograd; results of messages have come."""
    return _detached(tree) if isinstance(tree, Tensor) else tree_map_only(Tensor, _detached, tree)


def _detached(tensor: Tensor) -> Tensor:
    return arrived(tensor.detach())
