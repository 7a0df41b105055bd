"""The degrees of parallelism: over how many ranks parameters, layers and sequences are split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import gcd, prod

from ..errors import SchedsimError
from ..workloads.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Degrees:
    """Number of ranks along each axis; the product, without `expert`, is the number of devices.

    Attributes
    ----------
    fsdp
        Ranks that share parameters, gradients and optimizer state (ZeRO).
    replicate
        Replicas of each such group, whose gradients are averaged (HSDP, or instances of Megatron's
        distributed optimizer; plain data parallelism if `fsdp` is 1).
    tensor
        Ranks that split every matrix product, and the sequence between products.
    pipeline
        Ranks that each hold some of the layers.
    context
        Ranks that split the sequence; parameters are shared over them as over `fsdp`.
    expert
        Ranks that split the routed experts; they are taken from the ranks of `fsdp` and `context`,
        and from those of `tensor` too where these hold whole experts.
    whole_experts
        Whether tensor-parallel ranks hold whole experts, and each sends its part of the tokens
        (``--expert-tensor-parallel-size 1`` of Megatron, torchtitan's default). Otherwise they
        split each expert.
    """

    fsdp: int = 1
    replicate: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    whole_experts: bool = False

    @property
    def num_devices(self) -> int:
        """All ranks."""
        return self.fsdp * self.replicate * self.tensor * self.pipeline * self.context

    @property
    def shards(self) -> int:
        """Ranks over which parameters that are not experts are sharded."""
        return self.fsdp * self.context

    @property
    def expert_parts(self) -> int:
        """Tensor-parallel ranks that split each routed expert."""
        return 1 if self.whole_experts else self.tensor

    @property
    def data(self) -> int:
        """Ranks that read different sequences."""
        return self.fsdp * self.replicate

    def check_numbers(self) -> None:
        """Raise `SchedsimError`, naming the option, if a degree is no number of ranks."""
        if not isinstance(self.whole_experts, bool):
            raise SchedsimError(f"whole_experts {self.whole_experts!r} is not true or false")
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "whole_experts":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SchedsimError(
                    f"--{one.name} {value!r} is not a whole number, 1 or more",
                    hint=f"leave --{one.name} out for 1",
                )

    def check(self, model: Architecture) -> None:
        """Raise `SchedsimError`, naming the option, if the degrees do not fit `model`."""
        self.check_numbers()
        heads = model.attention
        for what, count in (
            ("attention heads", heads.num_heads),
            ("heads of keys", heads.num_heads if heads.kv_rank else heads.num_kv_heads),
        ):
            if count % self.tensor:
                raise SchedsimError(
                    f"--tensor {self.tensor} does not divide the {count} {what} of {model.name}",
                    hint=_divisors(heads.num_heads, heads.num_kv_heads, heads.kv_rank),
                )
        if self.pipeline > model.num_layers:
            raise SchedsimError(
                f"--pipeline {self.pipeline} exceeds the {model.num_layers} layers of {model.name}",
                hint="each stage holds at least one layer",
            )
        self._check_experts(model)

    def _check_experts(self, model: Architecture) -> None:
        if self.whole_experts and (model.experts is None or self.tensor == 1):
            raise SchedsimError(
                "--whole-experts changes nothing here",
                hint="it is of tensor-parallel ranks of a model with experts",
            )
        if self.expert == 1:
            return
        if model.experts is None:
            raise SchedsimError(
                f"--expert {self.expert}, but {model.name} has no experts", hint="leave it out"
            )
        if model.experts.num_routed % self.expert:
            raise SchedsimError(
                f"--expert {self.expert} does not divide the {model.experts.num_routed} experts "
                f"of {model.name}",
                hint="give a divisor",
            )
        ranks = self.shards * (self.tensor if self.whole_experts else 1)
        if ranks % self.expert:
            of = "--fsdp times --context" + (" times --tensor" if self.whole_experts else "")
            raise SchedsimError(
                f"--expert {self.expert} does not divide {of}, {ranks}",
                hint="ranks that split experts are a part of the ranks that shard parameters",
            )


def product_in_words(given: Mapping[str, int]) -> str:
    """The degrees of `given` that take devices of their own, and their product.

    Examples
    --------
    >>> product_in_words({"tensor": 2, "pipeline": 5, "expert": 4})
    '--tensor 2 times --pipeline 5, which is 10'
    """
    found = {k: n for k, n in given.items() if k not in ("expert", "whole_experts") and n > 1}
    product = " times ".join(f"--{name} {count}" for name, count in found.items())
    return f"{product}, which is {prod(found.values())}" if len(found) > 1 else product


def _divisors(num_heads: int, num_kv_heads: int, kv_rank: int) -> str:
    """The degrees that divide all heads, in words."""
    both = num_heads if kv_rank else gcd(num_heads, num_kv_heads)
    found = [str(n) for n in range(1, both + 1) if both % n == 0]
    if len(found) == 1:
        return "only 1 does"
    return f"{', '.join(found[:-1])} and {found[-1]} do"
