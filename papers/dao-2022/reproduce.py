"""FlashAttention 2022: what it does not store, its flops, and the memory traffic it saves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main

from schedsim.workloads import TransformerConfig, get_device, layer_saved_bytes, transformer_model

SOURCE = Source(
    title="Dao, Fu, Ermon, Rudra, Re 2022, FlashAttention",
    what="bytes stored, flops and traffic of exact attention without its matrix",
    fast=True,
)
CORE = ("attention", "scores", "softmax", "softmax_dropout", "context")


def config(attention: str, seq: int = 1024, batch: int = 64) -> TransformerConfig:
    """A layer of GPT-2 medium, as in their figure 2."""
    return TransformerConfig(
        name="gpt2-medium",
        num_layers=1,
        hidden=1024,
        num_heads=16,
        seq=seq,
        batch=batch,
        attention=attention,
    )


@cache
def core(attention: str, seq: int = 1024) -> tuple[int, int]:
    """(flops, bytes read and written) of the attention core, forward and backward."""
    stage = transformer_model(config(attention, seq)).stages[0]
    ops = (*stage.forward, *stage.backward)
    sizes = {tensor: size for op in ops for tensor, size in op.writes.items()}
    # The gradient of the output is as large as the output.
    sizes |= {f"d.{tensor}": size for tensor, size in sizes.items() if f"d.{tensor}" not in sizes}
    chosen = [op for op in ops if op.name.split(".")[-1].removesuffix("'") in CORE]
    moved = sum(sum(sizes[t] for t in op.reads) + sum(op.writes.values()) for op in chosen)
    return sum(op.flops for op in chosen), moved


def claims(instances: Instances) -> Iterator[Claim]:
    eager, flash = config("eager"), config("flash")
    statistics = 4 * flash.batch * flash.num_heads * flash.seq
    sbh = flash.seq * flash.batch * flash.hidden
    yield Claim(
        what="bytes that a layer keeps, per s b h, without the statistics of rows",
        claimed=34,
        ours=(layer_saved_bytes(flash) - statistics) / sbh,
        seen="formula",
    )
    yield Claim(
        what="bytes not kept: 5 a s^2 b less the statistics",
        claimed=5 * 16 * 1024**2 * 64 - statistics,
        ours=layer_saved_bytes(eager) - layer_saved_bytes(flash),
        unit="B",
        seen="formula",
    )
    yield Claim(
        what="flops with over without, GPT-2 medium, s = 1024",
        claimed=75.2 / 66.6,
        ours=core("flash")[0] / core("eager")[0],
        within=0.02,
        seen="second-hand",
        why="Seven products against six, and softmax: 15 % more; theirs is 13 %, of a number of "
        "flops that the stated batch does not give.",
    )
    yield Claim(
        what="memory traffic of standard attention, forward and backward",
        claimed=40.3,
        ours=core("eager")[1] / 1e9,
        unit="GB",
        within=4,
        seen="second-hand",
        why="Ours reads and writes each tensor once an op, masking and scaling in place.",
    )
    yield Claim(
        what="memory traffic of FlashAttention",
        claimed=4.4,
        ours=core("flash")[1] / 1e9,
        unit="GB",
        within=0.4,
        seen="second-hand",
        why="Ours counts one pass over what it reads; theirs goes over k and v once a block of "
        "rows that fits on chip.",
    )
    yield Claim(
        what="traffic without over with: more than halved when s doubles (s^2 against s)",
        claimed=2,
        ours=(core("eager", 2048)[1] / core("flash", 2048)[1])
        / (core("eager")[1] / core("flash")[1]),
        within=0.15,
        seen="formula",
    )
    device = get_device("a100-40gb")
    rates = device.flops_per_s["fp16"], device.bytes_per_s

    def roofline_s(attention: str) -> float:
        flops, moved = core(attention)
        return max(flops / rates[0], moved / rates[1])

    yield Claim(
        what="faster, forward and backward, by the roofline of an A100",
        claimed=41.7 / 7.3,
        ours=roofline_s("eager") / roofline_s("flash"),
        within=0.6,
        seen="second-hand",
        why="A roofline lets both kernels run at the peak.",
    )
    yield Claim(
        what="time of standard attention",
        claimed=41.7,
        ours=None,
        unit="ms",
        seen="second-hand",
        why="Measured on an A100; no kernel is run here.",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    lengths = [256, 512, 1024, 2048, 4096, 8192]
    for attention in ("eager", "flash"):
        sizes = [layer_saved_bytes(config(attention, seq, 1)) / 1e6 for seq in lengths]
        axes.loglog(lengths, sizes, "o-", base=2, label=f"{attention}, kept")
        moved = [core(attention, seq)[1] / 64 / 1e6 for seq in lengths]
        axes.loglog(lengths, moved, "s--", base=2, label=f"{attention}, core's traffic")
    axes.set(xlabel="sequence, GPT-2 medium, batch 1", ylabel="MB a layer")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
