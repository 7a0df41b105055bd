"""What the libraries of the ranks do otherwise than PyTorch 2.15: the code of the year of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import SchedsimError
from ..workloads.architecture import Architecture

_FIRST, _LAST = (2, 3), (2, 15)
"""Versions whose code was read: the first that has FSDP2, and the last."""
_UP_TO = {
    "packed_apart": (2, 4),
    "held_outputs": (2, 7),
    "wide_norm": (2, 8),
    "handed_always": (2, 8),
    "held_messages": (2, 14),
}
"""The last version of PyTorch that does so."""


@dataclass(frozen=True, slots=True)
class Libraries:
    """Ways of earlier libraries; with none of them, ranks run PyTorch 2.15.

    Attributes
    ----------
    wide_norm
        Norms of the eager step run op by op, and keep their input in fp32 and the normed input
        (torchtune, and PyTorch up to 2.8). Otherwise one kernel is a norm.
    handed_always
        Compiled code hands the block of a tensor on to a later one of its size even where its peak
        rises, because the block waits (PyTorch up to 2.8).
    held_messages
        A pipeline's ranks make the buffers of all messages once, and what a stage has sent stays
        for its backward (PyTorch up to 2.14). Otherwise a buffer lives as long as something reads
        it.
    held_outputs
        Every stage of a pipeline holds its outputs to the end of the step (PyTorch up to 2.7).
        Otherwise the last stage alone does.
    dropped_outputs
        The last stage of a pipeline is told to return no outputs (``return_outputs=False``,
        torchtitan since October 2025). Otherwise they are held to the next step.
    packed_apart
        Packed gradients lie in memory of the stream that reduces them, and are freed with it
        (PyTorch up to 2.4). Otherwise they lie beside activations, until others are packed.
    whole_heads
        Tensor-parallel ranks gather queries and keys of all heads behind their norms, turn them
        whole and cut them again (torchtitan's Qwen 3 of September 2025).
    routes
        The kernels that sort, weigh and add up tokens of experts
        (`schedsim.clusters.token_routes.ROUTES`); by default those of today.
    flex_attention
        Attention is PyTorch's FlexAttention (torchtitan's DeepSeek since August 2025).
    efficient_attention
        Attention is PyTorch's memory-efficient kernel, which alone takes heads whose values are
        narrower than their keys (torchtitan's DeepSeek before that).
    traced
        Ranks run the ops of a graph of the whole step, one by one (torchtitan's GraphTrainer): what
        runs again does so right before the first op of the backward that reads it, and no module
        holds what no later op reads.
    """

    wide_norm: bool = False
    handed_always: bool = False
    held_messages: bool = False
    held_outputs: bool = False
    dropped_outputs: bool = False
    packed_apart: bool = False
    whole_heads: bool = False
    routes: str = ""
    flex_attention: bool = False
    efficient_attention: bool = False
    traced: bool = False

    @classmethod
    def of_torch(cls, version: str, **others: Any) -> Libraries:
        """Those of a version of PyTorch.

        Parameters
        ----------
        version
            As ``"2.8"`` or ``"2.8.0+cu128"``.
        **others
            Ways of other libraries, by their names.

        Raises
        ------
        SchedsimError
            The version is none, or none whose code was read.

        Examples
        --------
        >>> Libraries.of_torch("2.13") == Libraries(held_messages=True)
        True
        >>> Libraries.of_torch("2.15") == Libraries()
        True
        """
        parts = str(version).split(".")[:2]
        if len(parts) < 2 or not all(one.isdecimal() for one in parts):
            raise SchedsimError(
                f"--torch {version!r} is no version of PyTorch", hint="as in --torch 2.8"
            )
        number = (int(parts[0]), int(parts[1]))
        if not _FIRST <= number <= _LAST:
            raise SchedsimError(
                f"--torch {version} is not known: its code was not read",
                hint=f"{'.'.join(map(str, _FIRST))} to {'.'.join(map(str, _LAST))}",
            )
        ways: dict[str, Any] = {name: number <= last for name, last in _UP_TO.items()}
        return replace(cls(**ways), **others)

    @classmethod
    def of_step(cls, version: str, model: Architecture, state: str) -> Libraries:
        """Those of a version of PyTorch that a step of `model` meets.

        Norms with a shift, as of GPT, are one kernel in every version, and Megatron has kernels of
        its own.

        Examples
        --------
        >>> from schedsim.clusters import get_architecture
        >>> models = map(get_architecture, ("gpt2-xl", "llama3-8b"))
        >>> [Libraries.of_step("2.8", model, "fsdp2").wide_norm for model in models]
        [False, True]
        """
        found = cls.of_torch(version)
        one_kernel = model.plain_norm or state == "megatron"
        return replace(found, wide_norm=found.wide_norm and not one_kernel)


LATEST = Libraries()
"""Those of PyTorch 2.15."""
