"""Where ``torch.utils.checkpoint`` puts what it makes again in a backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.utils import checkpoint

Pack = Callable[[Tensor], Callable[[], Tensor]]
"""Stores a tensor, and gives what reads it back."""


@contextmanager
def remade_elsewhere(pack: Pack) -> Iterator[None]:
    """Within the block, checkpoints store by `pack` what they make again, until it is read.

    They have hooks of their own for saved tensors, so that those around them see nothing of it.
    Checkpoints with ``use_reentrant=True`` have none, and need nothing here.
    """
    frames: Any = getattr(checkpoint, "_CheckpointFrame", None)
    hooks: Any = getattr(checkpoint, "_recomputation_hook", None)
    if frames is None or hooks is None:
        yield
        return
    begin_frame, begin_hook = frames.__init__, hooks.__init__

    def frame(self: Any, *arguments: Any, **keywords: Any) -> None:
        begin_frame(self, *arguments, **keywords)
        self.recomputed = defaultdict(lambda: _Packed(pack))

    def hook(self: Any, *arguments: Any, **keywords: Any) -> None:
        begin_hook(self, *arguments, **keywords)
        own, back = self.pack_hook, self.unpack_hook
        # The graph of what is made again would hold it, too.
        self.pack_hook = lambda tensor: pack(own(tensor))
        self.unpack_hook = lambda get: back(get())

    frames.__init__, hooks.__init__ = frame, hook
    try:
        yield
    finally:
        frames.__init__, hooks.__init__ = begin_frame, begin_hook


def ends_recomputation(error: BaseException) -> bool:
    """Whether a checkpoint has raised `error`, having made again all that a backward reads."""
    kind = getattr(checkpoint, "_StopRecomputationError", None)
    return kind is not None and isinstance(error, kind)


class _Packed(WeakKeyDictionary[Any, Any]):
    """A table of tensors, each of which is stored elsewhere."""

    def __init__(self, pack: Pack) -> None:
        super().__init__()
        self._pack = pack

    def __setitem__(self, key: Any, tensor: Tensor) -> None:
        super().__setitem__(key, self._pack(tensor))

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key)()
