"""What a function is given that Dynamo does not take whole: graphs within it do not read it all.

As the crops that a loop in the forward joins. It is there while the graphs run, and a backend sees
it only in the call in which Dynamo traces. So no plan counts it, and a line has its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import torch

from schedsim.units import format_bytes

from ...measure.storage import bytes_by_place
from ...torch_private.pytrees import tree_leaves


class InputsAround:
    """Of the functions of one model, on a CPU: a CUDA device tells what is allocated.

    Attributes
    ----------
    num_bytes
        Bytes of what no graph has read, once the first step is over.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._given: dict[int, int] = {}  # in the first step, and read by no graph yet
        self._is_said = False

    def see(self, inputs: Any) -> None:
        """A function is given `inputs` in the first step."""
        tensors = (it for it in tree_leaves(inputs) if isinstance(it, torch.Tensor))
        self._given |= bytes_by_place([it for it in tensors if it.device.type == "cpu"])

    def reads(self, inputs: Any) -> None:
        """A graph reads `inputs`: plans count them."""
        if self._given:
            read = bytes_by_place(inputs)
            self._given = {it: size for it, size in self._given.items() if it not in read}

    def step_ends(self, counted: Callable[[], Container[int]]) -> None:
        """A step is over; `counted` gives the addresses of parameters and buffers."""
        if self._given:
            places = counted()
            self.num_bytes = sum(size for it, size in self._given.items() if it not in places)
            self._given = {}

    def new_lines(self, over_bytes: int, extra_bytes: int) -> Iterator[str]:
        """What is to be said where steps may take so many bytes more than the budget with it.

        Parameters
        ----------
        extra_bytes
            Bytes that the loop has named already.
        """
        if self._is_said or not self.num_bytes or over_bytes <= 0:
            return
        self._is_said = True
        yield (
            f"a forward that Dynamo does not take whole is given {format_bytes(self.num_bytes)} "
            f"that no graph reads: plans count it only where extra_bytes ({extra_bytes}) does, and "
            f"else steps may exceed the budget by {format_bytes(min(over_bytes, self.num_bytes))}; "
            f"extra_bytes={extra_bytes + self.num_bytes} counts it beside what that names"
        )
