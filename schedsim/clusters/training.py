"""How a step is trained: batch, order of micro-batches, what is kept, formats and state."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ..checks.cluster_flags import flag_of
from ..errors import SchedsimError
from ..pipelines.orders import ORDERS
from ..workloads.architecture import Architecture
from .degrees import Degrees
from .kept_names import kept_names, on_host, split_host
from .libraries import LATEST, Libraries
from .token_routes import ROUTES

RECOMPUTE = ("none", "core", "selective", "full")
"""The policies of a layer. ``none``: nothing. ``core``: attention alone. ``selective``: keep
attention and every second matrix product, run the rest again (torchtitan's per-op policy).
``full``: keep the layer's input alone. Besides, ``keep=q+v+mixed`` keeps what these ops of a layer
make, and runs the rest again. ``@host2`` behind a policy offloads: what every second layer keeps
lies in host memory from its forward to its backward (``@host``: every layer's)."""

STATES = ("fsdp2", "megatron", "bf16")
"""Formats of the model state. ``fsdp2``: fp32 shards of parameter, gradient and two moments, a
bf16 copy gathered for use, gradients reduced in fp32. ``megatron``: bf16 parameters and fp32
gradients on every rank, fp32 parameter and moments sharded over the data-parallel ranks (ZeRO-1)
of each replica.
``bf16``: parameter, gradient and moments in bf16 on every rank that holds them."""

DISPATCHERS = ("alltoall", "deepep")
"""How tokens get to their experts. ``alltoall``: a copy of a token for each of its experts.
``deepep``: a token goes once to each node that holds some of them, and there once to each rank that
does (DeepEP and HybridEP)."""


@dataclass(frozen=True, slots=True)
class Training:
    """Settings of a step.

    Attributes
    ----------
    seq
        Tokens of a sequence, over all context-parallel ranks together.
    batch
        Sequences of each data-parallel rank in a step.
    num_micro_batches
        Number of parts into which `batch` is split; 0: one for each pipeline stage.
    schedule, num_chunks
        Order of the micro-batches over the stages, and stages on each device
        (`schedsim.pipelines.ORDERS`).
    recompute
        One of `RECOMPUTE` for all layers, or ``"full:4,none:12"``: the first four layers of each
        stage, then the next twelve. ``"full/selective/none"``: for each pipeline rank, in order.
        ``"keep=mixed+gate"``: the names are those of `schedsim.clusters.LayerOps`.
    compiled
        Whether layers are compiled: pointwise ops are fused, and their outputs are not kept.
    float8
        Whether matrix products of the layers run in 8 bits.
    zero_stage
        3: parameters are gathered for the forward and again for the backward; 2: gathered once.
        With a pipeline, `fsdp2` always gathers once, as torchtitan does.
    loss_chunks
        Number of chunks in which the loss is computed.
    chunked_head
        Whether each of these chunks goes forward and backward through head and loss before the
        next one, so that only its logits exist (torchtitan since April 2026, and fused losses).
        Otherwise the logits are whole, and copies of them in chunks.
    state
        One of `STATES`.
    compiled_loss
        Whether the loss is compiled: its gradient then overwrites its input.
    reduce_bf16
        Whether gradients are reduced in 16 bits (``reduce_dtype`` of FSDP; Megatron's
        ``--grad-reduce-in-bf16``). The rank's part is kept in fp32.
    separate_head
        Whether embedding and head are gathered as separate units.
    fused_optimizer
        Whether the optimizer works without temporary copies.
    eager_attention
        Whether attention writes and keeps its weight matrix, whose size is the square of the
        sequence.
    regather
        Whether layers are Megatron's: a gathered input of a product is gathered again for the
        backward instead of kept, and norms, rotations and activations are kernels of its own.
    whole_sequence
        Tensor-parallel ranks keep the whole sequence between products, and sum what products make
        over all of them (Megatron without ``--sequence-parallel``). Otherwise each keeps its part.
    overlap_tensor
        Whether messages between tensor-parallel ranks go part by part beside the products that need
        or make them (Megatron's ``--tp-comm-overlap``).
    optimizer_in_backward
        Each gradient is used as soon as it is there.
    async_tensor
        Messages between tensor-parallel ranks go part by part into products and out of them,
        without copies (torchtitan's asynchronous tensor parallelism). Their time is not hidden.
    wide_logits
        Whether the model hands out fp32 logits. A compiled loss reads them; an eager loss makes
        them anyway.
    held_logits
        Whether a variable of the loop holds what the model handed out until the next forward has
        handed out its own (``logits = model(batch)`` without ``del logits``).
    expandable
        Whether the allocator's segments grow (``expandable_segments:True``).
    dispatcher
        One of `DISPATCHERS`.
    hidden_exchange
        Whether tokens of one micro-batch go to their experts and back beside the computation of
        another (Megatron's ``--overlap-moe-expert-parallel-comm``).
    uneven
        Tokens that the expert-parallel rank with the most of them gets, over those that each would
        get if they were spread evenly: all ranks wait for it. It sorts as many as the others here.
    libraries : Libraries
        What the ranks' libraries do otherwise than PyTorch 2.15.
    """

    seq: int = 8192
    batch: int = 1
    num_micro_batches: int = 0
    schedule: str = "1f1b"
    num_chunks: int = 1
    recompute: str = "none"
    compiled: bool = False
    float8: bool = False
    zero_stage: int = 3
    loss_chunks: int = 1
    chunked_head: bool = False
    state: str = "fsdp2"
    compiled_loss: bool = False
    reduce_bf16: bool = False
    separate_head: bool = False
    fused_optimizer: bool = False
    eager_attention: bool = False
    regather: bool = False
    whole_sequence: bool = False
    overlap_tensor: bool = False
    optimizer_in_backward: bool = False
    async_tensor: bool = False
    wide_logits: bool = False
    expandable: bool = False
    held_logits: bool = False
    dispatcher: str = "alltoall"
    hidden_exchange: bool = False
    uneven: float = 1.0
    libraries: Libraries = LATEST

    @property
    def reduced_bytes(self) -> int:
        """Bytes of a gradient's number while it is reduced."""
        return 2 if self.reduce_bf16 else 4

    @property
    def is_graph(self) -> bool:
        """Whether layers run as graphs, compiled or op by op, and not as eager modules."""
        return self.compiled or self.libraries.traced

    def micro_batches(self, degrees: Degrees) -> int:
        """How many micro-batches the step has."""
        return self.num_micro_batches or (degrees.pipeline if degrees.pipeline > 1 else 1)

    def micro_batch(self, degrees: Degrees) -> int:
        """Sequences of one micro-batch."""
        return self.batch // self.micro_batches(degrees)

    def sequence_ranks(self, degrees: Degrees) -> int:
        """Tensor-parallel ranks that split the sequence between products."""
        return 1 if self.whole_sequence else degrees.tensor

    def policies(self, num_layers: int, rank: int = 0) -> list[str]:
        """The policy of each of `num_layers` layers of a stage of pipeline rank `rank`.

        Examples
        --------
        >>> Training(recompute="full:1,none:2").policies(3)
        ['full', 'none', 'none']
        >>> Training(recompute="full/none").policies(2, rank=1)
        ['none', 'none']
        >>> Training(recompute="full:1,keep=mixed+gate:2").policies(3)
        ['full', 'keep=mixed+gate', 'keep=mixed+gate']
        >>> Training(recompute="none@host2").policies(3)
        ['none@host', 'none', 'none@host']
        """
        return policies_of(self.recompute, num_layers, rank)

    def check_types(self) -> None:
        """Raise `SchedsimError`, naming the option, if a setting is none of its kind."""
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(one.default, bool) and not isinstance(value, bool):
                raise SchedsimError(f"{one.name} {value!r} is not true or false")
        if not isinstance(self.recompute, str):
            raise SchedsimError(
                f"recompute {self.recompute!r} is no text", hint=f"one of {', '.join(RECOMPUTE)}"
            )
        if not isinstance(self.libraries, Libraries):
            raise SchedsimError(
                f"libraries {self.libraries!r} is no Libraries", hint='or give torch="2.8"'
            )
        if self.libraries.routes not in ("", *ROUTES):
            raise SchedsimError(
                f"routes {self.libraries.routes!r} of the libraries is unknown",
                hint=f"one of {', '.join(ROUTES)}",
            )
        if self.libraries.flex_attention and self.libraries.efficient_attention:
            raise SchedsimError(
                "flex_attention and efficient_attention of the libraries are two kernels",
                hint="leave one of them out",
            )

    def check_numbers(self) -> None:
        """Raise `SchedsimError`, naming the option, if a number is none of its kind."""
        for name in ("seq", "batch", "num_chunks", "loss_chunks"):
            _at_least(name, getattr(self, name), 1)
        _at_least("num_micro_batches", self.num_micro_batches, 0)
        number = isinstance(self.uneven, int | float) and not isinstance(self.uneven, bool)
        if not number or not 1 <= self.uneven < math.inf:
            raise SchedsimError(
                f"--uneven {self.uneven!r} is not a number from 1 on",
                hint="1.5 gives the fullest rank half more tokens than the mean",
            )

    def check(self, model: Architecture, degrees: Degrees) -> None:
        """Raise `SchedsimError`, naming the option, if settings contradict each other."""
        self.check_types()
        self.check_numbers()
        _one_of("state", self.state, STATES)
        _one_of("schedule", self.schedule, tuple(ORDERS))
        _one_of("dispatcher", self.dispatcher, DISPATCHERS)
        if self.zero_stage not in (2, 3):
            raise SchedsimError(
                f"--zero {self.zero_stage!r} is not 2 or 3",
                hint="3 gathers parameters twice, 2 once; --state megatron is stage 1",
            )
        parts = self.recompute.count("/") + 1
        if parts not in (1, degrees.pipeline):
            raise SchedsimError(
                f"--recompute has {parts} parts for {degrees.pipeline} pipeline ranks",
                hint="one for all ranks, or one for each rank, with / between them",
            )
        for rank in range(parts):
            self.policies(model.num_layers, rank)
        count = self.micro_batches(degrees)
        if self.batch % count:
            raise SchedsimError(
                f"--batch {self.batch} is not a multiple of {count} micro-batches",
                hint="give a --micro-batches that divides it",
            )
        if self.optimizer_in_backward and count > 1:
            raise SchedsimError(
                f"--optimizer-in-backward with {count} micro-batches: each gradient is used at "
                "once, and those of micro-batches are added up",
                hint="give --micro-batches 1, without --pipeline",
            )
        split = self.sequence_ranks(degrees)
        split *= 2 * degrees.context if degrees.context > 1 else 1
        if self.seq % split:
            raise SchedsimError(
                f"--seq {self.seq} is not a multiple of {split}",
                hint="--context splits it into two parts per rank, --tensor into one",
            )
        if self.num_chunks > 1 and self.schedule != "interleaved":
            raise SchedsimError(
                f"--chunks {self.num_chunks} needs --schedule interleaved", hint="or leave it out"
            )
        if self.schedule == "interleaved" and self.num_chunks == 1:
            raise SchedsimError(
                "--schedule interleaved with one stage a device is the order 1f1b",
                hint="give --chunks 2 or more",
            )
        if self.schedule == "interleaved" and count % degrees.pipeline:
            raise SchedsimError(
                f"{count} micro-batches are not a multiple of {degrees.pipeline} stages",
                hint="the interleaved order goes in groups of as many micro-batches as stages",
            )
        if degrees.pipeline * self.num_chunks > model.num_layers + 2:
            raise SchedsimError(
                f"{degrees.pipeline * self.num_chunks} stages for {model.num_layers} layers",
                hint="fewer --pipeline or --chunks; embedding and head may be stages by themselves",
            )
        if self.hidden_exchange and degrees.pipeline > 1 and self.schedule != "interleaved":
            raise SchedsimError(
                "--hidden-exchange with a pipeline needs --schedule interleaved",
                hint="Megatron's overlap has no other order: add --chunks too, or leave it out",
            )
        if self.whole_sequence and degrees.whole_experts:
            raise SchedsimError(
                "--whole-experts with --whole-sequence is not modelled",
                hint="each rank sends its part of the sequence: leave --whole-sequence out",
            )
        if model.positions and self.seq > model.positions:
            raise SchedsimError(
                f"--seq {self.seq} exceeds the {model.positions} positions of {model.name}",
                hint=f"its positions are learned: --seq {model.positions} or less",
            )
        tokens = self.micro_batch(degrees) * self.seq // degrees.context
        if self.loss_chunks > tokens:
            raise SchedsimError(
                f"--loss-chunks {self.loss_chunks} exceeds the {tokens} tokens of a rank",
                hint="8 is common",
            )
        if self.reduce_bf16 and (degrees.pipeline > 1 or self.zero_stage == 2):
            raise SchedsimError(
                "--reduce-bf16 where whole gradients are added up is not modelled",
                hint="with a pipeline or --zero 2, leave it out",
            )
        if self.chunked_head and degrees.pipeline > 1:
            raise SchedsimError(
                "--chunked-head with a pipeline is not modelled", hint="leave one of them out"
            )
        if self.chunked_head and self.seq // degrees.context % self.loss_chunks:
            raise SchedsimError(
                f"--loss-chunks {self.loss_chunks} does not divide the "
                f"{self.seq // degrees.context} tokens of a rank's sequence",
                hint="--chunked-head cuts sequences into equal parts",
            )
        self._check_idle(model, degrees)

    def _check_idle(self, model: Architecture, degrees: Degrees) -> None:
        """Refuse settings that would change nothing."""
        sharded, alone = self.state == "fsdp2", degrees.pipeline == 1
        policies = self.recompute.translate(str.maketrans(",:/@", "    ")).split()
        for given, needed, what, hint in (
            (self.schedule != "1f1b", not alone, f"--schedule {self.schedule}", "add --pipeline"),
            (self.zero_stage == 2, sharded and alone, "--zero 2", "it is of fsdp2 without stages"),
            (self.separate_head, sharded and alone, "--separate-head", "as is --zero"),
            (self.reduce_bf16, sharded, "--reduce-bf16", "it is of fsdp2"),
            (
                self.async_tensor,
                degrees.tensor > 1 and not self.whole_sequence,
                "async_tensor",
                "it is of tensor-parallel ranks that split the sequence",
            ),
            (self.whole_sequence, degrees.tensor > 1, "--whole-sequence", "add --tensor"),
            (
                self.overlap_tensor,
                degrees.tensor > 1 and self.state == "megatron" and not self.whole_sequence,
                "--overlap-tensor",
                "it is of Megatron's tensor-parallel ranks that split the sequence",
            ),
            (
                self.regather,
                degrees.tensor > 1 or self.state == "megatron",
                "--regather",
                "it is of tensor-parallel ranks, or of Megatron's layers: add --tensor or --state",
            ),
            *(
                (given, model.experts is not None, f"--{name}", f"{model.name} has no experts")
                for name, given in (
                    ("dispatcher", self.dispatcher != "alltoall"),
                    ("hidden-exchange", self.hidden_exchange),
                    ("uneven", self.uneven != 1),
                )
            ),
            (
                self.loss_chunks > 1,
                not self.compiled_loss or self.chunked_head,
                "--loss-chunks",
                "or --compile-loss",
            ),
            (self.chunked_head, self.loss_chunks > 1, "--chunked-head", "add --loss-chunks"),
            (
                self.wide_logits,
                (self.compiled_loss and not self.chunked_head)
                or (self.held_logits and alone and self.loss_chunks == 1),
                "wide_logits",
                "it is of a loss that is compiled, or of held_logits",
            ),
            (
                self.held_logits,
                alone and self.loss_chunks == 1,
                "held_logits",
                "it is of one pipeline rank, and of a whole loss",
            ),
            (
                self.libraries.whole_heads,
                degrees.tensor > 1 and not self.compiled and model.attention.head_norm,
                "whole_heads",
                "it is of eager tensor-parallel layers whose heads have norms",
            ),
            (
                self.optimizer_in_backward,
                self.state == "bf16",
                "--optimizer-in-backward",
                "add --state bf16",
            ),
            (
                "core" in policies,
                self.eager_attention,
                "--recompute core",
                "add --eager-attention: fused attention runs its core again anyway",
            ),
        ):
            if given and not needed:
                raise SchedsimError(f"{what} changes nothing here", hint=hint)


def policies_of(recompute: str, num_layers: int, rank: int) -> list[str]:
    """The policy of each of `num_layers` layers of a stage of pipeline rank `rank`."""
    of_ranks = recompute.split("/")
    mine = of_ranks[min(rank, len(of_ranks) - 1)]
    if mine in RECOMPUTE:
        return [mine] * num_layers
    found: list[str] = []
    for part in mine.split(","):
        name, _, count = part.strip().partition(":")
        base, every = split_host(name)
        known = base in RECOMPUTE or kept_names(base) is not None
        if not known or every is None or (count and not (count.isdecimal() and int(count))):
            raise SchedsimError(
                f"--recompute {part!r} is not understood",
                hint=f"one of {', '.join(RECOMPUTE)}, keep=OP+OP of a layer, or counts of "
                "layers: full:4,none:12; none@host2 offloads what every second layer keeps",
            )
        hosted = on_host(base)
        found += [
            hosted if every and not i % every else base
            for i in range(min(int(count), num_layers) if count else num_layers)
        ]
    found += found[-1:] * (num_layers - len(found))
    return found[:num_layers]


def counted_layers(recompute: str) -> int:
    """How many layers at least a setting ``recompute`` of one pipeline rank speaks of.

    What follows a policy without a count, which takes all layers that are left, speaks of one more
    than all others.

    Examples
    --------
    >>> [counted_layers(one) for one in ("full", "full:4,none:12", "full:4,none")]
    [1, 16, 5]
    """
    return sum(int(part.partition(":")[2] or 1) for part in recompute.split(","))


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SchedsimError(
            f"{flag_of(name)} {value!r} is not a whole number, {least} or more",
            hint="leave it out for its default",
        )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SchedsimError(f"--{name} {value!r} is unknown", hint=f"one of {', '.join(known)}")


def field_names() -> tuple[str, ...]:
    """Names of the settings."""
    return tuple(one.name for one in fields(Training))
