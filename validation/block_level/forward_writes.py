"""Tensors besides buffers that a forward writes in place: a capture leaves them as they were.

As of a momentum encoder that the forward itself moves, or of a tensor that no module has
registered. A block that runs again would write them a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from schedsim.errors import UnsupportedError

from ..guards.recording import Undo
from ..guards.saved_elsewhere import copied_elsewhere
from ..torch_private.sharded_groups import is_sharded
from ..torch_private.storage_refs import storage_key


class ForwardWrites:
    """What a forward of `model` writes, as far as its ops declare it.

    Of a model that is sharded over ranks nothing is known: whatever gathers it writes to it.
    """

    def __init__(self, model: nn.Module, undo: Undo | None) -> None:
        self._model, self._undo = model, undo

    @contextmanager
    def seen(self) -> Iterator[None]:
        """See what a forward in the block writes, and put it back behind it."""
        if self._undo is None:
            yield
            return
        try:
            with self._undo:
                yield
        finally:
            self._undo.restore()

    def refuse_parameters(self) -> None:
        """Raise `UnsupportedError` where a parameter was written: no block may run again."""
        names = {storage_key(p): name for name, p in self._model.named_parameters()}
        keys = self._undo.written if self._undo is not None else ()
        written = [names[key] for key in keys if key in names]
        if written:
            raise UnsupportedError(
                f"a forward writes the parameter {written[0]}, and blocks that run again would "
                "write it once more",
                hint="keep it in a buffer, or write it in the loop; level='op', or in_place=True",
            )


@contextmanager
def undone_writes(model: nn.Module) -> Iterator[ForwardWrites]:
    """Put back at the end of the block what forwards wrote that were seen in it."""
    if is_sharded(model):
        yield ForwardWrites(model, None)
        return
    with copied_elsewhere() as copied:
        undo = Undo([], copied)
        try:
            yield ForwardWrites(model, undo)
        finally:
            undo.restore()
