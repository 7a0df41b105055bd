"""Settings of torch that decide which ops a step is made of, and that its graph does not hold.

``torch.nn.attention.sdpa_kernel`` is one: attention is a composite, and a trace holds the kernel
that was chosen when it was made. Dynamo guards some of these settings, and not those of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch

_ATTENTION = ("flash", "mem_efficient", "math", "cudnn", "overrideable", "fa3")


@dataclass(frozen=True)
class GlobalSettings:
    """The settings at one moment; the plan of a step is for those of its forward.

    Attributes
    ----------
    attention, attention_order
        The kinds of attention kernel that may run, and which goes first.
    attention_in_short
        Whether attention's products of 16-bit numbers are summed in 16 bits.
    number_type, device
        What tensors are made of, and where, if nothing is said.
    deterministic
        Whether only deterministic algorithms may run, and whether others only warn.
    cudnn, mkldnn
        Whether these libraries are used.
    einsum
        Whether the order of an einsum's products is searched, and how.
    """

    attention: tuple[str, ...]
    attention_order: tuple[int, ...]
    attention_in_short: bool
    number_type: torch.dtype
    device: str
    deterministic: tuple[bool, bool]
    cudnn: bool
    mkldnn: bool
    einsum: tuple[bool, str | None]

    @classmethod
    def now(cls) -> GlobalSettings:
        """The present settings."""
        einsum: Any = torch.backends.opt_einsum
        return cls(
            tuple(name for name, is_on in _kernels if is_on()),
            tuple(torch._C._get_sdp_priority_order()),
            torch._C._get_math_sdp_allow_fp16_bf16_reduction(),
            torch.get_default_dtype(),
            torch.get_default_device().type,
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            torch._C._get_cudnn_enabled(),
            torch._C._get_mkldnn_enabled(),
            (einsum.enabled, einsum.strategy),
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run the block with these settings; the default device stays, as it is a mode of torch."""
        with ExitStack() as stack:
            present = GlobalSettings.now()
            for name, put in _PUT.items():
                wanted, was = getattr(self, name), getattr(present, name)
                if wanted != was:
                    put(wanted)
                    stack.callback(put, was)
            yield

    def difference(self, other: GlobalSettings) -> str | None:
        """The first setting that `other` has otherwise, in words; ``None`` if there is none."""
        if self == other:  # in nearly every step
            return None
        for field in fields(self):
            mine, its = getattr(self, field.name), getattr(other, field.name)
            if mine != its:
                return f"torch's {field.name} is {its} instead of {mine}"
        return None


def _reader(name: str) -> Callable[[], bool] | None:
    found: Callable[[], bool] | None = getattr(torch._C, f"_get_{name}_sdp_enabled", None)
    return found


_kernels = [(name, reader) for name in _ATTENTION if (reader := _reader(name)) is not None]


def _put_attention(names: tuple[str, ...]) -> None:
    for name, _ in _kernels:
        getattr(torch._C, f"_set_sdp_use_{name}")(name in names)


_PUT: dict[str, Callable[[Any], None]] = {
    "attention": _put_attention,
    "attention_order": lambda order: torch._C._set_sdp_priority_order(list(order)),
    "attention_in_short": torch._C._set_math_sdp_allow_fp16_bf16_reduction,
    "number_type": torch.set_default_dtype,
    "deterministic": lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
    "cudnn": torch._C._set_cudnn_enabled,
    "mkldnn": torch._C._set_mkldnn_enabled,
}
