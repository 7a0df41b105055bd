"""Devices in nodes, and how long collectives take between them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..errors import SchedsimError, did_you_mean
from ..plans.links import LINKS
from ..workloads.architecture import ExpertSizes
from ..workloads.devices import Device, device_names, get_device, is_device_file


@dataclass(frozen=True, slots=True)
class _Protocol:
    """How NCCL sends: seconds to begin, and of a step inside a node and between nodes.

    In a ring every rank takes part in every step; a tree is as deep as the logarithm of the nodes.
    `rate_share` is the share of the links' rate.
    """

    base_ring_s: float
    base_tree_s: float
    near_ring_s: float
    far_ring_s: float
    near_tree_s: float
    far_tree_s: float
    rate_share: float

    def ring_s(self, sent_s: float, near: int, far: int) -> float:
        """A ring of so many steps, whose bytes alone take `sent_s`."""
        steps_s = near * self.near_ring_s + far * self.far_ring_s
        return sent_s / self.rate_share + self.base_ring_s + steps_s

    def tree_s(self, sent_s: float, near: int, far: float) -> float:
        """A tree, up and down."""
        steps_s = near * self.near_tree_s + far * self.far_tree_s
        return sent_s / self.rate_share + self.base_tree_s + steps_s


_PROTOCOLS = (
    _Protocol(8.4e-6, 8.4e-6, 3.4e-6, 14e-6, 4e-6, 14e-6, 1.0),
    _Protocol(14e-6, 14e-6, 1.9e-6, 4e-6, 1.25e-6, 8.5e-6, 0.92),
)
"""Simple and LL128 of NCCL's own model, by which it chooses (github NVIDIA/nccl, 5067397c,
``src/graph/tuning.cc``: ``ncclTopoTuneModel``)."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """A cluster of equal devices.

    Attributes
    ----------
    device
        The device whose peaks set the times.
    efficiency
        Share of the device's arithmetic peak that its ops reach, in (0, 1].
    near_bytes_per_s, far_bytes_per_s
        Bytes per second that one device sends inside a node, and to other nodes.
    per_node
        Devices in a node.
    latency_s
        Seconds that a message from one device to another takes however short it is. A collective's
        are those of NCCL's rings and trees, which grow with the ranks.
    float8_gain
        Rate of matrix products in 8 bits over those in 16; 0 for a device without 8-bit products.
    link_efficiency
        Share of the links' rates that collectives reach.
    attention_share
        Rate of fused attention over that of matrix products (`get_fabric`).
    host_bytes_per_s
        Bytes per second that a device sends to its host, and as many back at the same time.
    memory_share
        Share of the memory's bandwidth that ops reach: on ``h100-96gb``, large pointwise kernels
        reach 2.2 of 2.4 TB/s (torchao, ``testing/training/roofline_utils.py``).
    is_assumed
        Whether links, nodes and `efficiency` are those of no such device: nothing was looked up.
    launch_s, compiled_launch_s
        Seconds of the host for a kernel, launched by an op of PyTorch or by compiled code: 13.5 us
        for a matrix product of PyTorch on the host of a DGX H100 (github NVIDIA/TransformerEngine,
        issue 2053), 7 us for a kernel (github meta-pytorch/autoparallel, pull request 146).
    processors
        Streaming multiprocessors of the device.
    near_sending, far_sending
        Share of the device's processors that the kernel of a message holds, inside a node and
        between nodes (`schedsim.clusters.beside_messages`).
    persistent
        Whether matrix products run as one block for each processor, as those of Hopper do.
    """

    device: Device
    efficiency: float
    near_bytes_per_s: float
    far_bytes_per_s: float
    per_node: int = 8
    latency_s: float = 10e-6
    float8_gain: float = 2.0
    link_efficiency: float = 0.75
    attention_share: float = 1.0
    host_bytes_per_s: float = LINKS["pcie5"].bytes_per_s
    memory_share: float = 0.92
    is_assumed: bool = False
    launch_s: float = 13.5e-6
    compiled_launch_s: float = 7e-6
    processors: int = 132
    near_sending: float = 24 / 132
    far_sending: float = 16 / 132
    persistent: bool = False

    def sending(self, span: int) -> float:
        """Share of the processors that a message holds in a group of `span` neighbours."""
        return self.near_sending if span <= self.per_node else self.far_sending

    def copy_s(self, size_bytes: float) -> float:
        """Seconds of a copy between a device and its host, in one direction."""
        return size_bytes / (self.host_bytes_per_s * self.link_efficiency) + self.latency_s

    def op_s(self, flops: float, float8_flops: float, moved_bytes: int) -> float:
        """Seconds of an op: the larger of its arithmetic time and its memory-traffic time.

        References
        ----------
        Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
        """
        rate = self.device.flops_per_s["bf16"]
        arithmetic = flops / rate
        if float8_flops:
            arithmetic += float8_flops / (rate * self.float8_gain)
        traffic = moved_bytes / (self.device.bytes_per_s * self.memory_share)
        return max(arithmetic / self.efficiency, traffic)

    def rate(self, span: int) -> float:
        """Bytes that each of `span` neighbouring devices sends per second in a ring."""
        rate = self.near_bytes_per_s if span <= self.per_node else self.far_bytes_per_s
        return rate * self.link_efficiency

    def gather_s(self, whole_bytes: float, ranks: int, span: int) -> float:
        """Seconds of an all-gather to, or a reduce-scatter of, `whole_bytes` over `ranks`.

        Each rank sends ``(ranks - 1) / ranks`` of the bytes in a ring; `span` counts the devices
        from the first rank to the last. In a group that spans several nodes, all devices of a node
        send side by side, each over its own link.

        Each of its steps takes some time however short the message is (`_PROTOCOLS`).

        References
        ----------
        Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH",
        IJHPCA 19(1), 2005, section 4.
        """
        if ranks < 2:
            return 0.0
        sent_s = whole_bytes * (ranks - 1) / ranks / self._group_rate(ranks, span)
        nodes = self._nodes(ranks, span)
        return min(one.ring_s(sent_s, ranks - nodes, nodes - 1) for one in _PROTOCOLS)

    def all_reduce_s(self, size_bytes: float, ranks: int, span: int) -> float:
        """Seconds of an all-reduce: a ring that reduces and gathers, or a tree."""
        if ranks < 2:
            return 0.0
        sent_s = 2 * size_bytes * (ranks - 1) / ranks / self._group_rate(ranks, span)
        nodes = self._nodes(ranks, span)
        near, far = ranks - nodes, nodes - 1
        ring = min(one.ring_s(sent_s, 2 * near, 2 * far) for one in _PROTOCOLS)
        inside, deep = ranks // nodes - 1, math.log2(nodes)
        return min(ring, *(one.tree_s(sent_s, 2 * inside, 2 * deep) for one in _PROTOCOLS))

    def all_to_all_s(self, sent_bytes: float, ranks: int, span: int) -> float:
        """Seconds in which every rank sends an equal part of `sent_bytes` to every rank.

        Links of a node and those between nodes are used at the same time.
        """
        if ranks < 2:
            return 0.0
        inside = self._inside(ranks, span)
        near, far = (sent_bytes * others / ranks for others in (inside - 1, ranks - inside))
        return self._side_by_side_s(near, far) + self._latency_s(ranks)

    def dispatch_s(self, held_bytes: float, ranks: int, span: int, experts: ExpertSizes) -> float:
        """Seconds in which tokens of `held_bytes` on every rank go to the ranks of their experts.

        A token goes once to each node that holds some of its experts, and from there over the links
        of that node, meanwhile, once to each rank that does, as DeepEP and HybridEP send it.
        Experts are drawn with equal chance.
        """
        if ranks < 2:
            return 0.0
        inside = self._inside(ranks, span)
        nodes = ranks // inside
        far = held_bytes * (nodes - 1) * _chance(experts, nodes)
        near = held_bytes * ranks * _chance(experts, ranks) * (inside - 1) / inside
        return self._side_by_side_s(near, far) + self._latency_s(ranks)

    def _nodes(self, ranks: int, span: int) -> int:
        """In how many nodes `ranks` lie."""
        return -(-ranks // self._inside(ranks, span))

    def _inside(self, ranks: int, span: int) -> int:
        """How many of `ranks` lie in one node."""
        return min(ranks, max(1, self.per_node * ranks // max(span, ranks)))

    def _side_by_side_s(self, near: float, far: float) -> float:
        """Seconds in which a device sends bytes inside its node, and others to other nodes."""
        slowest = max(near / self.near_bytes_per_s, far / self.far_bytes_per_s)
        return slowest / self.link_efficiency

    def send_s(self, size_bytes: float, span: int) -> float:
        """Seconds of one message between devices `span` apart."""
        return size_bytes / self.rate(span + 1) + self.latency_s

    def _group_rate(self, ranks: int, span: int) -> float:
        if span <= self.per_node:
            return self.rate(span)
        # A ring over whole nodes crosses each border once: all links of the node carry it.
        inside = max(1, self.per_node * ranks // span)
        far = self.far_bytes_per_s * inside * self.link_efficiency
        return min(self.near_bytes_per_s * self.link_efficiency, far)

    def _latency_s(self, ranks: int) -> float:
        return self.latency_s * max(1.0, math.log2(ranks))


def _chance(experts: ExpertSizes, parts: int) -> float:
    """The chance that one of `parts`, each with as many experts, holds an expert of a token."""
    count, active = experts.num_routed, experts.num_active
    elsewhere = count - count // parts
    return 1.0 - math.comb(elsewhere, active) / math.comb(count, active)


# GB/s that one device sends in one direction; calibrated efficiency, with its source. NVLink 3, 4
# and 5 carry 600, 900 and 1,800 GB/s both ways (NVIDIA data sheets); one network card a device: 200
# Gb/s with A100, 400 Gb/s with H100 and H200.
_NODES: dict[str, tuple[str, float, float, float]] = {
    "h100-80gb": ("h100", 450, 50, 0.65),
    "h100": ("h100", 450, 50, 0.65),
    "h200": ("h200", 450, 50, 0.65),
    "h100-96gb": ("h100", 450, 50, 0.51),
    "a100-80gb": ("a100-80gb", 300, 25, 0.68),
    "a100-40gb": ("a100-40gb", 300, 25, 0.68),
}


_HOPPER = ("h100", "h200")
_FLOAT8_GAIN = 1.77
"""What the fastest products of an H100 reach in 8 bits, 1,403 Tflop/s, over those in 16, 794
(github stas00/ml-engineering, 744d01e, ``compute/accelerator/README.md``); its peaks are 2 apart.
"""
_PROCESSORS = {"a100": 108}
"""Streaming multiprocessors, where they are not the 132 of an H100 (NVIDIA data sheets)."""
_NEAR_BLOCKS = 24
"""Blocks of an all-gather inside a node (forums.developer.nvidia.com, topic 337991, of H100; github
Tencent-Hunyuan/UniRL, pull request 467, of H20)."""
_CARD_BLOCKS = 2
"""Blocks for each network card (github NVIDIA/nccl, issue 689: 2 for one, 16 for eight)."""
_CARD_BYTES_PER_S = 12.5e9
"""A card has 100 Gb/s or more, and a device has one at most."""


def _far_blocks(per_node: int, far_bytes_per_s: float) -> int:
    """Blocks of a message between nodes.

    >>> [_far_blocks(8, rate) for rate in (50e9, 6.25e9)]
    [16, 8]
    """
    cards = math.ceil(per_node * far_bytes_per_s / _CARD_BYTES_PER_S)
    return _CARD_BLOCKS * min(per_node, cards)


_FLASH = {1: 0.5, 2: 1.0, 3: 2.0}
"""FlashAttention -> its rate over that of the second one. The first reaches 25 to 40 % of an A100's
peak, the second about twice as much (Dao 2023, arXiv 2307.08691, abstract). On Hopper, the second
reaches 35 %, and the third up to 75 % (Shah et al. 2024, arXiv 2407.08608, abstract)."""


def flash_share(name: str) -> float:
    """Rate of FlashAttention-2 over that of matrix products, on the device called `name`.

    Examples
    --------
    >>> [flash_share(one) for one in ("h100", "a100-80gb")]
    [0.5, 1.0]
    """
    return 0.5 if name[:4] in _HOPPER else 1.0


def get_fabric(
    name: str, efficiency: float | None = None, flash: int = 2, network: float | None = None
) -> Fabric:
    """A cluster of nodes with eight devices called `name`.

    ``h100-96gb`` is the device of Grand Teton nodes: 96 GB at 2.4 TB/s, limited to 500 W. Devices
    of `schedsim.workloads.get_device` that are missing in the table get the links of an H100 and an
    efficiency of 0.6, and predictions say so.

    Parameters
    ----------
    efficiency
        Share of the arithmetic peak that ops reach, in (0, 1]; calibrated by default.
    flash
        Which FlashAttention runs, or a kernel as fast: 1, 2 (as in PyTorch since 2.2) or, on
        Hopper, 3 (as cuDNN's, which Transformer Engine takes there). The second is as fast as
        matrix products, on Hopper half as fast.
    network
        GB/s that one device sends to other nodes, at most: 6.25 where a node of eight has 400 Gb/s.
        By default 50, and 25 of an A100.

    Raises
    ------
    SchedsimError
        The device is unknown, or a number is none of its kind.

    Examples
    --------
    >>> get_fabric("h100-80gb").gather_s(9e9, 8, 8) > 0.017
    True
    >>> [get_fabric("h100-80gb", flash=one).attention_share for one in (1, 2, 3)]
    [0.25, 0.5, 1.0]
    """
    if efficiency is not None and not 0 < efficiency <= 1:
        raise SchedsimError(
            f"--efficiency {efficiency} is not in (0, 1]", hint="0.5 is half of the peak"
        )
    if network is not None and (isinstance(network, bool) or not 0 < network < math.inf):
        raise SchedsimError(
            f"--network {network!r} is no number of GB/s", hint="6.25 is 400 Gb/s for eight devices"
        )
    hopper = name[:4] in _HOPPER
    if isinstance(flash, bool) or flash not in _FLASH:
        raise SchedsimError(f"--flash {flash!r} is not 1, 2 or 3", hint="2 by default")
    if flash == 3 and not hopper:
        raise SchedsimError(
            f"--flash 3 does not run on {name}", hint="FlashAttention-3 is of h100 and h200"
        )
    if not (name in _NODES or name in device_names() or is_device_file(name)):
        every = dict.fromkeys((*_NODES, *device_names()))
        able = f"one of {', '.join(every)}, or a file NAME.json"
        raise SchedsimError(
            f"--device {name!r} is unknown", hint=did_you_mean(name, list(every), able)
        )
    known, near, far, calibrated = _NODES.get(name, (name, 450, 50, 0.60))
    device = get_device(known)
    if name == "h100-96gb":
        device = replace(
            device,
            name=name,
            bytes_per_s=2.4e12,
            memory_bytes=96 * 10**9,
            source="torchtitan, benchmarks/llama3_h100_202412_torchtitan.md",
        )
    far_bytes_per_s = (far if network is None else network) * 1e9
    processors = _PROCESSORS.get(name[:4], 132)
    return Fabric(
        device,
        calibrated if efficiency is None else efficiency,
        near * 1e9,
        far_bytes_per_s,
        float8_gain=_FLOAT8_GAIN if hopper else 0.0,
        attention_share=_FLASH[flash] * flash_share(name),
        host_bytes_per_s=LINKS["pcie4" if name.startswith("a100") else "pcie5"].bytes_per_s,
        is_assumed=name not in _NODES,
        processors=processors,
        near_sending=_NEAR_BLOCKS / processors,
        far_sending=_far_blocks(8, far_bytes_per_s) / processors,
        persistent=hopper,
    )


def check_network(network: float | None, devices: int, fabric: Fabric) -> None:
    """Raise `SchedsimError` where a `network` is given to devices that need none."""
    if network is not None and devices <= fabric.per_node:
        raise SchedsimError(
            f"--network changes nothing here: {devices} devices are in one node",
            hint=f"nodes have {fabric.per_node}: leave it out",
        )
