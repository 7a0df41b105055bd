"""Compiled steps of models at true sizes within budgets, on a CUDA device that is not there.

    python -m schedsim.validation.dry_cuda --device h100-80gb -- \\
        python benchmarks/compiled_dry.py --models "gpt2-xl;vit-l"
    python benchmarks/compiled_dry.py --report      # the table of what is measured already

Needs the environment of docs/dry-cuda.md. Inductor compiles for CUDA, PyTorch's own caching
allocator hands out memory, kernels are not run. First torch.compile at settings of
``activation_memory_budget``, then ``rematerialize(compile=True)`` at the reserved peak of each and
at shares of what the step takes that keeps all. Bytes are allocated and reserved, parameters among
them, gradients made by backward; FLOPs are those of matrix products, convolutions and attention of
one step, as PyTorch's FLOP counter has them.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from schedsim.validation.dry_cuda.label import LABEL
from schedsim.validation.models import build_model
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import schedsim
from schedsim.errors import SchedsimError

RESULTS = Path(__file__).parent / "results" / "compiled-dry.jsonl"
SHARES = (1.0, 0.75, 0.5)
KNOB = (1.0, 0.7, 0.5, 0.3, 0.1, 0.0)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-xl, 4 layers": ("gpt2-xl", {"layers": 4, "seq": 1024, "batch": 8}),
    "gpt2-xl": ("gpt2-xl", {"seq": 1024, "batch": 4}),
    "llama3-8b, 4 layers": ("llama3-8b", {"layers": 4, "seq": 2048, "batch": 1}),
    "llama3-8b": ("llama3-8b", {"seq": 2048, "batch": 1, "dtype": "bf16"}),
    "llama3-8b, LoRA": ("llama3-8b", {"seq": 2048, "batch": 1, "dtype": "bf16"}),
    "vit-l": ("vit-l16", {"batch": 64}),
    "u-net": ("unet", {"image": 256, "batch": 16}),
}


class Adapted(nn.Module):
    """A frozen linear layer, and a product of two small matrices added to it."""

    def __init__(self, base: nn.Linear, rank: int = 16) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        like = {"device": base.weight.device, "dtype": base.weight.dtype, "bias": False}
        self.down = nn.Linear(base.in_features, rank, **like)
        self.up = nn.Linear(rank, base.out_features, **like)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        made: Tensor = self.base(x) + self.up(self.down(x))
        return made


def adapt(model: nn.Module) -> None:
    """Freeze `model`, and adapt the linear layers of its blocks."""
    model.requires_grad_(False)
    linear = [(name, one) for name, one in model.named_modules() if isinstance(one, nn.Linear)]
    for name, layer in linear[:-1]:  # the last gives the logits
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, Adapted(layer))


class Dry:
    """A model on the device, with what a step of it takes.

    Attributes
    ----------
    resident_bytes
        Allocated before the first step.
    """

    def __init__(self, title: str) -> None:
        name, options = MODELS[title]
        built = build_model(name, **options, device="cuda")
        self.model, self.inputs = built.model.train(), built.inputs
        if "LoRA" in title:
            adapt(self.model)
        assert built.loss is not None
        self.loss: Any = built.loss
        torch.cuda.synchronize()
        self.resident_bytes = torch.cuda.memory_allocated()

    def clear(self) -> None:
        """No gradients."""
        self.model.zero_grad(set_to_none=True)

    def peaks(self, step: Callable[[], Tensor]) -> dict[str, int]:
        """Allocated and reserved bytes of three steps on an empty cache, when warm."""
        for _ in range(2):
            step().backward()  # type: ignore[no-untyped-call]
            self.clear()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            step().backward()  # type: ignore[no-untyped-call]
            self.clear()
        return {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }


@contextmanager
def counted_graphs() -> Iterator[list[int]]:
    """FLOPs of each graph that inductor compiles meanwhile."""
    from torch._inductor import config
    from torch.utils.flop_counter import flop_registry

    found: list[int] = []

    def count(graph: torch.fx.Graph) -> None:
        total = 0
        for node in graph.nodes:
            packet = getattr(node.target, "_overloadpacket", None)
            if packet in flop_registry:
                args, words = torch.fx.node.map_arg(
                    (node.args, node.kwargs), lambda given: given.meta["val"]
                )
                total += flop_registry[packet](*args, **words, out_val=node.meta["val"])
        found.append(int(total))

    with config.patch(post_grad_custom_pre_pass=count, force_disable_caches=True):
        yield found


def theirs(title: str, budget: float) -> dict[str, Any]:
    """torch.compile at a setting."""
    torch._dynamo.reset()
    dry = Dry(title)
    step = torch.compile(lambda: dry.loss(dry.model(*dry.inputs)))
    with torch._functorch.config.patch(activation_memory_budget=budget), counted_graphs() as flops:
        peaks = dry.peaks(step)
    return {**peaks, "flops": sum(flops), "graphs": len(flops)}


class Ours:
    """``rematerialize(compile=True)`` of a model: captured, compiled and recorded once."""

    def __init__(self, title: str) -> None:
        self.dry = Dry(title)
        begun = time.process_time()
        self.module = schedsim.rematerialize(
            self.dry.model,
            self.dry.inputs,
            10**15,
            self.dry.loss,
            compile=True,
            effort=2.0,
            time_limit_s=60.0,
        )
        self.made_s = time.process_time() - begun
        self.most = self.measured()["reserved_bytes"]

    def measured(self) -> dict[str, int]:
        """Bytes and FLOPs of the present plan's step."""
        planned = self.module.prepare(*self.dry.inputs)
        peaks = self.dry.peaks(lambda: planned.module(*self.dry.inputs))
        with FlopCounterMode(display=False) as flops:
            planned.module(*self.dry.inputs).backward()
        self.dry.clear()
        return {**peaks, "flops": flops.get_total_flops()}

    def at(self, budget_bytes: int) -> dict[str, Any]:
        """The step within `budget_bytes`."""
        begun = time.process_time()
        try:
            self.module.replan(budget_bytes)
            planned = self.module.prepare(*self.dry.inputs)
        except SchedsimError as error:
            reason = str(error).partition("\n")[0][:400]
            return {"status": "infeasible", "budget_bytes": budget_bytes, "reason": reason}
        return {
            "status": planned.plan.status,
            "budget_bytes": budget_bytes,
            "level": planned.captured.level,
            "compiled": any("compiled:" in note for note in planned.captured.notes),
            **self.measured(),
            "planned_s": time.process_time() - begun,
        }


def measure(
    title: str, knob: list[float], rows: list[dict[str, Any]], keep: Callable[..., None]
) -> None:
    """All rows of a model that are not there yet."""

    def known(setting: str) -> dict[str, Any] | None:
        return next((r for r in rows if (r["model"], r["setting"]) == (title, setting)), None)

    peaks = []
    for budget in knob:
        setting = f"activation_memory_budget {budget:g}"
        if known(setting) is None:
            try:
                keep(model=title, setting=setting, status="ok", **theirs(title, budget))
            except Exception as error:  # a setting that breaks is a row, not the end of the run
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
                keep(model=title, setting=setting, status="fails", reason=reason)
            gc.collect()
            torch.cuda.empty_cache()
        row = known(setting)
        if row is not None and row["status"] == "ok":
            peaks.append((f"ours at {setting}", row["reserved_bytes"]))
    ours = Ours(title)
    resident = ours.dry.resident_bytes
    wanted = [(f"ours {s:.0%}", int(resident + (ours.most - resident) * s)) for s in SHARES]
    for setting, budget_bytes in [*wanted, *peaks]:
        if known(setting) is None:
            keep(model=title, setting=setting, made_s=ours.made_s, **ours.at(budget_bytes))


def report(rows: list[dict[str, Any]]) -> str:
    """The tables, with what they say of the claims."""
    own = [r for r in rows if r["setting"].startswith("ours") and "reserved_bytes" in r]
    held = sum(r["reserved_bytes"] <= r["budget_bytes"] for r in own)
    theirs_by = {(r["model"], r["setting"]): r for r in rows if r["setting"].startswith("act")}
    lines = [
        "# Compiled steps at true sizes",
        "",
        f"Made by `python benchmarks/compiled_dry.py` on a dry device: {LABEL}. See there.",
        "",
        f"- Reserved peak at most the budget in {held} of {len(own)} steps of ours.",
    ]
    pairs = [
        (r, theirs_by[r["model"], r["setting"].removeprefix("ours at ")])
        for r in rows
        if r["setting"].startswith("ours at ")
    ]
    fit = [(ours, other) for ours, other in pairs if "reserved_bytes" in ours]
    fewer = sum(ours["flops"] <= other["flops"] for ours, other in fit)
    lines += [
        f"- At the reserved peak of a setting of torch.compile: no plan in {len(pairs) - len(fit)} "
        f"of {len(pairs)}; no more FLOPs than torch.compile's in {fewer} of the other {len(fit)}.",
        "",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        device = next(row["device"] for row in rows if row["model"] == model)
        lines += [
            f"## {model}, as on {device}",
            "",
            "| | budget, GB | allocated, GB | reserved, GB | TFLOP |",
            "|---|---:|---:|---:|---:|",
        ]
        for row in rows:
            if row["model"] != model:
                continue
            budget = f"{row['budget_bytes'] / 1e9:.3f}" if "budget_bytes" in row else ""
            if "reserved_bytes" not in row:
                lines.append(
                    f"| {row['setting']} | {budget} | {row['reason'].partition(': ')[2]} | | |"
                )
                continue
            lines.append(
                f"| {row['setting']} | {budget} | {row['allocated_bytes'] / 1e9:.3f} | "
                f"{row['reserved_bytes'] / 1e9:.3f} | {row['flops'] / 1e12:.3f} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure, then write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=";".join(MODELS), help="separated by semicolons")
    parser.add_argument("--knob", default=",".join(map(str, KNOB)), help="settings; none: ''")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    text = args.results.read_text() if args.results.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]

    def keep(**row: Any) -> None:
        device = torch.cuda.get_device_name()
        rows.append({**row, "torch": torch.__version__, "device": device})
        args.results.write_text("".join(json.dumps(one) + "\n" for one in rows))
        print(rows[-1], flush=True)

    if not args.report:
        for title in args.models.split(";"):
            knob = [float(one) for one in args.knob.split(",") if one]
            measure(title, knob, rows, keep)
    args.results.with_suffix(".md").write_text(report(rows).rstrip() + "\n")


if __name__ == "__main__":
    main()
