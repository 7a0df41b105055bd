"""Code for CUDA that copies no argument to align it, whatever the addresses are.

Inductor takes it that its arguments lie at multiples of 16 bytes, and copies one that does not
before a kernel reads it: a slice, or a part of a split. No plan counts such a copy. So there is
other code for arguments that lie elsewhere, made when they first come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Code = Callable[[list[Any]], Sequence[Any]]

ALIGNED_BYTES = 16


class AlignedCalls:
    """Calls the code that is made for the addresses of its arguments.

    Parameters
    ----------
    make
        Makes code that takes it that all arguments are aligned, but for those at these positions.
    positions
        Positions of the arguments that lie on a CUDA device.
    """

    def __init__(self, make: Callable[[tuple[int, ...]], Code], positions: Sequence[int]) -> None:
        self._make, self._positions = make, tuple(positions)
        self._code: dict[tuple[int, ...], Code] = {(): make(())}

    def __call__(self, tensors: list[Any]) -> Sequence[Any]:
        apart = tuple(
            [i for i in self._positions if tensors[i].data_ptr() % ALIGNED_BYTES]  # a hot path
        )
        code = self._code.get(apart)
        if code is None:
            code = self._code[apart] = self._make(apart)
        return code(tensors)
