"""The copies of one step: what goes to host memory, what comes back, and when memory is free."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor

from schedsim.errors import SchedsimError

from ..torch_private.pytrees import tree_flatten
from ..torch_private.storage_refs import storage_key
from .block_program import BlockRun
from .sizes import tensors_in
from .transfers import Mover, Parked

if TYPE_CHECKING:
    from .runtime import BlockStep

Key = tuple[str, int]
"""``("a", j)`` is value j, ``("r", j)`` the bundle of part j - 1."""


class Copies:
    """Runs the copies of a step, and frees memory when the plan says.

    On CUDA nothing here waits: events order the streams. Memory that a copy to the host still reads
    is freed behind the event of that copy, at the place in the issue order at which the plan frees
    it. So at every run the device holds what the plan says it holds.
    """

    def __init__(self, step: BlockStep, mover: Mover) -> None:
        self.step, self.mover = step, mover
        self.parked: dict[Key, Parked] = {}
        self.owners: dict[Key, int] = {}  # the run whose instance is on the device
        self.held: dict[Key, list[Any]] = {}  # places that a bundle's tensors were taken from
        self.arriving: dict[Key, Any] = {}  # events of copies back
        self.leaving: dict[Key, list[Any]] = {}
        self._static: set[int] | None = None

    def before(self, run: BlockRun) -> None:
        """Make the device wait for what `run` reads."""
        if not self.arriving or run.moves is not None:
            return
        layout = self.step.layout
        if run.kind == "loss":
            keys: list[Key] = [("a", run.index)]
        else:
            keys = [("a", value) for value in layout.parts[run.index].reads]
        if run.kind == "B":
            keys += [("a", run.index + 1), ("r", run.index + 1)]
        for key in keys:
            self.mover.wait(self.arriving.pop(key, None))

    def run(self, run: BlockRun) -> None:
        """Start a copy."""
        assert run.moves is not None
        key: Key = run.moves[:2]
        if run.kind == "d2h":
            self._out(key)
        else:
            self._back(key)

    def after(self, number: int, run: BlockRun) -> None:
        """Note what `run` made, and drop what is free now."""
        if run.moves is not None:
            name = f"{run.moves[0]}@" if run.kind == "d2h" else run.moves[0]
            self.owners[name, run.moves[1]] = number
        elif run.kind == "F":
            self.owners["a", run.index + 1] = number
            if run.saves:
                self.owners["r", run.index + 1] = number
        for (kind, value, consumer), maker in zip(run.frees, run.makers, strict=True):
            if kind == "d":
                self.step.gradients.pop((value, consumer), None)
            elif self.owners.get((kind, value)) == maker:
                self._free((kind, value))

    def _free(self, key: Key) -> None:
        kind, value = key
        del self.owners[key]
        if kind.endswith("@"):
            self.mover.forget(self.parked.pop((kind[0], value)))
            return
        for event in self.leaving.pop(key, ()):
            self.mover.wait(event)
        self.mover.wait(self.arriving.pop(key, None))
        if kind == "a":
            self.step.values.pop(value, None)
            return
        bundle = self.step.bundles.get(value - 1)
        for held in self._holders(bundle) if bundle is not None else ():
            if isinstance(held.content, Tensor) and not self._stays(held.content):
                held.content = None

    def drop_output(self, index: int) -> None:
        """Drop the output of a block whose backward starts and is the last to read it.

        What its bundle would look for in the output, it holds from now on.
        """
        bundle = self.step.bundles.get(index)
        for held in self._holders(bundle) if bundle is not None else ():
            held.take_from(index + 1, self.step.values.get(index + 1))
        if ("a", index + 1) in self.owners:
            self._free(("a", index + 1))

    def _out(self, key: Key) -> None:
        kind, value = key
        self.mover.wait(self.arriving.pop(key, None))
        if kind == "a":
            # The model's output may be gone: the loss drops it if nothing reads it again.
            tensors, spec = tree_flatten(self.step.values.get(value, ()))
            self.held[key] = [spec]
        else:
            holders = [h for h in self._holders(self.step.bundles[value - 1]) if _is_moved(h)]
            tensors = [held.content for held in holders]
            # Weak references: autograd drops each holder when its node has run.
            self.held[key] = [weakref.ref(held) for held in holders]
        parked = self.mover.out(tensors, self._kept())
        self.parked[key] = parked
        if parked.left is not None:
            self.leaving.setdefault(key, []).append(parked.left)

    def _back(self, key: Key) -> None:
        kind, value = key
        tensors, event = self.mover.back(self.parked[key])
        if event is not None:
            self.arriving[key] = event
        if kind == "a":
            (spec,) = self.held[key]
            self.step.values[value] = spec.unflatten(tensors)
            return
        for reference, tensor in zip(self.held[key], tensors, strict=True):
            held = reference()
            if held is not None:
                held.content = tensor

    @staticmethod
    def _holders(bundle: Any) -> list[Any]:
        found = [reference() for reference in bundle.cell.held]
        return [held for held in found if held is not None]

    def _kept(self) -> set[int]:
        """Storages that stay: parameters, buffers, and the inputs of the step."""
        if self._static is None:
            inputs = self.step.inputs
            given = [inputs.arguments, dict(inputs.keywords), inputs.extra, inputs.side]
            modules = {m for part in self.step.layout.parts for m in part.modules}
            static = [t for m in modules for t in (*m.parameters(), *m.buffers())]
            self._static = {storage_key(t) for t in (*static, *tensors_in(given))}
        return self._static

    def _stays(self, tensor: Tensor) -> bool:
        return storage_key(tensor) in self._kept()


def _is_moved(held: Any) -> bool:
    return isinstance(held.content, Tensor)


def check_movable(step: BlockStep, index: int, expected_bytes: int, name: str) -> None:
    """Refuse a part that keeps bytes where no copy finds them.

    Raises
    ------
    SchedsimError
        The saved tensors of its bundle hold fewer bytes than were measured for the bundle.
    """
    copies = step.copies
    assert copies is not None
    holders = copies._holders(step.bundles[index])
    kept = {
        storage_key(h.content): h.content.untyped_storage().nbytes()
        for h in holders
        if _is_moved(h) and not copies._stays(h.content)
    }
    found = sum(kept.values())
    if found != expected_bytes:
        raise SchedsimError(
            f"block {name!r} keeps {expected_bytes} bytes, of which {found} are saved tensors that "
            "can be copied to the host",
            hint="leave offload= out: something else, such as an attribute of a context, keeps "
            "the rest",
        )
