"""Yang et al. 2024: activations stored in 2 bits, norms that share the next layer's memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.special import erf

sys.path.insert(0, str(Path(__file__).parents[1]))
from _claims import Claim, Instances, Source, main
from _common import store_all

from schedsim import Chain
from schedsim.workloads import TransformerConfig, WorkloadOptions, build_workload, transformer_model
from schedsim.workloads.ops import StageRecord

SOURCE = Source(
    title="Yang et al. 2024, Approximate and memory-sharing backpropagation",
    what="34 to 23 bytes a layer, the norm's gradient from its output, a step for GELU's slope",
    fast=True,
)


def layer(attention: str = "flash") -> TransformerConfig:
    """A layer with biases and dropout, batch 1."""
    return TransformerConfig(
        name="layer", num_layers=1, hidden=1024, num_heads=16, seq=1024, attention=attention
    )


def kept(stage: StageRecord, *, gelu_bits: int = 16, shared_norms: bool = False) -> float:
    """Bytes that a layer keeps; statistics of attention left out.

    `shared_norms`: the backward of a norm reads its output, which the next product keeps, and no
    longer its input.
    """
    sizes = {t: size for op in stage.forward for t, size in op.writes.items()}
    sizes["in"] = sizes["out"]  # the layer's input is as large as its output
    reads = {}
    for op in stage.backward:
        reads[op.name] = set(op.reads)
        if op.name.endswith("norm'") and shared_norms:
            source = "in" if op.name.startswith("attention") else "attention.out"
            reads[op.name] -= {source, "d.out"}
            reads[op.name].add(op.name.replace("norm'", "n"))
    needed = set().union(*reads.values()) & set(sizes)
    total = 0.0
    for tensor in needed:
        if tensor.endswith("lse"):
            continue
        share = gelu_bits / 16 if tensor == "mlp.g" else 1.0
        total += sizes[tensor] * share
    return total


def gelu_slope(x: np.ndarray) -> np.ndarray:
    """The derivative of GELU."""
    return 0.5 * (1 + erf(x / np.sqrt(2))) + x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


@cache
def best_step() -> tuple[np.ndarray, np.ndarray]:
    """Three edges and four levels (0 first, 1 last) nearest to GELU's slope in least squares."""
    x = np.linspace(-8, 8, 16001)
    slope = gelu_slope(x)

    def error(edges: np.ndarray) -> float:
        inner = np.searchsorted(np.sort(edges), x)
        total = 0.0
        for level in range(4):
            part = slope[inner == level]
            value = {0: 0.0, 3: 1.0}.get(level, part.mean() if part.size else 0.0)
            total += float(((part - value) ** 2).sum())
        return total * (x[1] - x[0])

    starts = ([-1.5, 0.0, 1.5], [-2.5, 0.0, 0.5], [-0.5, 0.3, 2.0], [-3.0, -0.2, 0.5])
    found = min(
        (minimize(error, start, method="Nelder-Mead", options={"xatol": 1e-6}) for start in starts),
        key=lambda result: result.fun,
    )
    edges = np.sort(found.x)
    inner = np.searchsorted(edges, x)
    levels = np.array([0.0, slope[inner == 1].mean(), slope[inner == 2].mean(), 1.0])
    return edges, levels


def norm_gradient_error() -> float:
    """Largest relative error of a norm's gradient from its output alone, against differences."""
    rng = np.random.default_rng(0)
    x, up = rng.normal(size=(2, 16, 32))
    up = up.copy()

    def norm(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        spread = np.sqrt(values.var(axis=1, keepdims=True) + 1e-5)
        return (values - values.mean(axis=1, keepdims=True)) / spread, spread

    y, spread = norm(x)
    from_output = (
        up - up.mean(axis=1, keepdims=True) - y * (up * y).mean(axis=1, keepdims=True)
    ) / spread
    step = 1e-6
    numeric = np.empty_like(x)
    for i in range(x.shape[1]):
        moved = np.zeros_like(x)
        moved[:, i] = step
        difference = norm(x + moved)[0] - norm(x - moved)[0]
        numeric[:, i] = (difference / (2 * step) * up).sum(axis=1)
    return float(np.abs(from_output - numeric).max() / np.abs(numeric).max())


def claims(instances: Instances) -> Iterator[Claim]:
    stage = transformer_model(layer()).stages[0]
    sbh = 1024 * 1024
    for name, units, options in (
        ("as it is", 34, {}),
        ("GELU in 2 bits", 27, {"gelu_bits": 2}),
        ("norms that share", 30, {"shared_norms": True}),
        ("both", 23, {"gelu_bits": 2, "shared_norms": True}),
    ):
        yield Claim(
            what=f"bytes of a layer per s b h, {name}",
            claimed=units,
            ours=kept(stage, **options) / sbh,  # type: ignore[arg-type]
            seen="formula",
        )
    less = 1 - kept(stage, gelu_bits=2, shared_norms=True) / kept(stage)
    yield Claim(
        what="of a layer's activations saved by both, without s x s matrices",
        claimed=30,
        ours=100 * less,
        unit="%",
        within=3,
        seen="abstract",
        why="The abstract speaks of the peak of fine-tuning with some weights frozen; this is the "
        "share of activations when all weights train.",
    )
    eager = transformer_model(layer("eager")).stages[0]
    both = kept(eager, gelu_bits=2, shared_norms=True)
    yield Claim(
        what="the same with s x s matrices kept",
        claimed=30,
        ours=100 * (1 - both / kept(eager)),
        unit="%",
        within=3,
        seen="abstract",
        why="Attention's matrices are most of a layer at s = h = 1024; neither trick is for them.",
    )
    options = WorkloadOptions(preset="vit-b16", batch=64, dtype="fp16", attention="flash")
    chain = build_workload(options).workload
    assert isinstance(chain, Chain)
    vit = TransformerConfig(
        name="vit", num_layers=1, hidden=768, num_heads=12, seq=197, batch=64, attention="flash",
        dropout=False,
    )  # fmt: skip
    block = transformer_model(vit).stages[0]
    spared = 12 * (kept(block) - kept(block, gelu_bits=2, shared_norms=True))
    yield Claim(
        what="of the peak of ViT-B saved, batch 64, fp16, all weights training, no model state",
        claimed=30,
        ours=100 * spared / store_all(chain).peak_bytes,
        unit="%",
        within=5,
        seen="abstract",
        why="Without dropout masks GELU and the norms are a larger share; weights, gradients and "
        "optimizer state, which a measured peak has, make it smaller.",
    )
    yield Claim(
        what="gradient of a norm from its output: error against differences",
        claimed=0,
        ours=norm_gradient_error(),
        within=1e-7,
        seen="text",
    )
    x = np.linspace(-8, 8, 16001)
    edges, levels = best_step()
    step = levels[np.searchsorted(edges, x)]
    ratio = np.abs(step - gelu_slope(x)).sum() / np.abs((x > 0) - gelu_slope(x)).sum()
    yield Claim(
        what="error of the step's slope over that of ReLU's, the one-bit step",
        claimed=1,
        ours=float(ratio),
        relation="at most",
        seen="formula",
        why="Our own least-squares step; their constants were not seen.",
    )


def figure(page, instances: Instances) -> None:
    axes = page.add_subplot()
    x = np.linspace(-4, 4, 2001)
    edges, levels = best_step()
    axes.plot(x, gelu_slope(x), label="slope of GELU")
    axes.plot(x, levels[np.searchsorted(edges, x)], label="best step of four levels")
    axes.plot(x, x > 0, ":", label="slope of ReLU")
    axes.set(xlabel="x")
    axes.legend()


if __name__ == "__main__":
    main(__file__, SOURCE, claims, figure)
