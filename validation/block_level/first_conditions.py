"""What a repeated forward finds as its first run did: random numbers, buffers, casts, Python."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..autocasts import Autocast
from ..measure.storage import storage_bytes
from ..torch_private.global_settings import GlobalSettings
from .block_program import BlockRun
from .repeated_forward import (
    Buffers,
    RandomState,
    copies,
    frozen_statistics,
    replaced_buffers,
)

if TYPE_CHECKING:
    from .runtime import StepLayout


@dataclass
class FirstStates:
    """What the first forward of each block began with, by the number of the block.

    Attributes
    ----------
    autocast, settings
        The casts and the settings of the whole step.
    random
        Of the blocks that drew random numbers.
    buffers, python
        Of the blocks that change buffers, and places outside of tensors.
    """

    autocast: Autocast
    settings: GlobalSettings = field(default_factory=GlobalSettings.now)
    random: dict[int, RandomState] = field(default_factory=dict)
    buffers: dict[int, Buffers] = field(default_factory=dict)
    python: dict[int, list[Any]] = field(default_factory=dict)


class FirstConditions:
    """Entered around a forward run: restores random numbers, buffers and casts of the first run."""

    def __init__(self, layout: StepLayout, first: FirstStates, run: BlockRun) -> None:
        self.layout, self.first, self.run = layout, first, run

    def __enter__(self) -> None:
        first, run, layout = self.first, self.run, self.layout
        index = run.index
        self.contexts = [first.autocast.entered()]
        self.before: RandomState | None = None
        once = run.first and run.last
        if not once:
            self.before = RandomState.now(layout.devices)
        if run.first and not once and layout.state[index]:
            first.buffers[index] = copies(_present(layout.state[index]))
        self.python: list[Any] | None = None
        if run.first and not once and layout.python:
            first.python[index] = layout.python.take()
        if not run.first and index in first.python:
            self.python = layout.python.take()
            layout.python.put(first.python[index])
        if not run.first:
            self.contexts.append(first.settings.entered())
            if index in first.random:
                first.random[index].restore()
            self.contexts.append(frozen_statistics(layout.parts[index].modules))
            if index in first.buffers:
                self.contexts.append(replaced_buffers(first.buffers[index]))
        for context in self.contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        first, run = self.first, self.run
        for context in reversed(self.contexts):
            context.__exit__(*error)
        if self.python is not None:
            self.layout.python.put(self.python)
        if self.before is None:
            return
        if not run.first:
            self.before.restore()
        elif RandomState.now(self.layout.devices) != self.before:
            first.random[run.index] = self.before  # it drew numbers: repeats must draw the same
        if run.last:
            first.random.pop(run.index, None)
            first.buffers.pop(run.index, None)
            first.python.pop(run.index, None)


def kept_buffer_bytes(state: Iterable[Buffers]) -> int:
    """Bytes of copies of the buffers that blocks change, and of one more while a block runs again.

    Parameters
    ----------
    state
        For each block that runs again, the buffers that it changes.
    """
    sizes = [storage_bytes([value for _, _, value in _present(buffers)]) for buffers in state]
    return sum(sizes) + max(sizes, default=0)


def _present(buffers: Buffers) -> Buffers:
    """The same places with the values that they hold now."""
    found: Buffers = []
    for module, name, _ in buffers:
        value = module._buffers[name]
        if value is not None:
            found.append((module, name, value))
    return found
