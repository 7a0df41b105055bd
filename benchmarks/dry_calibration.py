"""The dry CUDA device against published peaks of real GPUs.

    python benchmarks/dry_calibration.py --python ENV/bin/python       # every row, and the page
    python benchmarks/dry_calibration.py --python ENV/bin/python --only "8 GPUs, eager"

ENV holds torch's CUDA build (docs/dry-cuda.md), and torchao for rows with float8. A row that names
an older torch is run with that one, where a further ``--python`` has it (torch 2.6.0 with torchao
0.8.0, 2.5.0 or 2.4.0; numpy, scipy, numba, highspy, networkx, click, rich and joblib). The models
are our own (``decoders.py``), from published sizes; settings are those of each source. A row
is run by ``calibration_step.py`` in a process of its own, one rank of a fake process group where
there are several GPUs. A compiled row is run until Inductor finds every graph in its cache, as
what it compiles in the first step changes where the allocator's segments are cut. A row that was
run before is not run again, unless it is asked for by its name, or as one of the compiled ones
(``--compiled``).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROWS = HERE / "results" / "dry-calibration.jsonl"
PAGE = HERE / "results" / "dry-calibration.md"

TITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
TRAINY = "torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md"
LOSS = "torchtitan, pull request 996"
SHARDED = "torchtitan, pull request 165"
TUNE = "torchtune, README, optimization flags"
TUNE_8B = "torchtune, README, memory and training speed"


@dataclass(frozen=True)
class Row:
    """A published peak, and the settings of the step that it was measured in.

    Attributes
    ----------
    published_gib
        As the source gives it.
    quantity
        What the source measured: ``reserved`` bytes, or ``active`` ones.
    gpus
        Ranks that parameters are sharded over; 1 for a step that is not sharded.
    tensor
        Ranks of tensor parallelism.
    keeps
        What of a layer is kept: ``all``, ``selective`` (torchtitan's), or ``full`` for its input.
    compiled, compiled_loss, fused
        Whether the layers, the loss and the optimizer's step are.
    rank, few_adapters
        Rank of adapters (0: the weights are trained), and whether only query and value have them.
    offload
        Whether what is kept waits in host memory.
    held_logits
        Whether the loop holds logits in single precision until the next forward has made its own,
        and norms convert their input (torchtitan in March 2024).
    conf
        Settings of the allocator, as ``PYTORCH_ALLOC_CONF`` takes them.
    with_torch
        The version that it is run with: that of the source's time where the compiler's choices of
        then decide.
    """

    name: str
    source: str
    published_gib: float
    quantity: str
    model: str
    gpus: int = 1
    tensor: int = 1
    batch: int = 2
    seq: int = 8192
    keeps: str = "selective"
    compiled: bool = False
    compiled_loss: bool = False
    fused: bool = False
    float8: bool = False
    pieces: int = 1
    rank: int = 0
    few_adapters: bool = False
    in_backward: bool = False
    offload: bool = False
    held_logits: bool = False
    conf: str = ""
    device: str = "h100-80gb"
    with_torch: str = "2.15"


def _tuned(name: str, published_gib: float, **options: Any) -> Row:
    """A step of torchtune: one GPU, everything in bf16."""
    base = {
        "model": "llama3.2-3b",
        "seq": 4096,
        "keeps": "all",
        "fused": True,
        "device": "a100-80gb",
    }
    return Row(name, TUNE, published_gib, "active", **{**base, **options})


_GROWING = "expandable_segments:True"
_COMPILED = {"compiled": True}
# PyTorch up to 2.8 has no kernel for a norm: eager steps keep its input in fp32.
_OF_2025 = {"batch": 1, "conf": _GROWING, "with_torch": "2.8"}
_2025 = {"compiled": True, "compiled_loss": True, "float8": True, "fused": True}
_PIECES = {"compiled": True, "compiled_loss": True, "pieces": 8}
_LEAN = {**_PIECES, "keeps": "full"}
_7B = {"model": "llama2-7b", "gpus": 8, "batch": 8, "seq": 2048, "held_logits": True}
_8B = {"model": "llama3-8b", "fused": True, "rank": 8, "few_adapters": True, **_PIECES}
ROWS_ASKED = (
    Row("8 GPUs, eager", TITAN, 82.4, "reserved", "llama3-8b", 8, with_torch="2.8"),
    Row("128 GPUs, eager", TITAN, 67.0, "reserved", "llama3-8b", 128, with_torch="2.8"),
    Row("8 GPUs, compile", TITAN, 77.0, "reserved", "llama3-8b", 8, **_COMPILED),
    Row("128 GPUs, compile", TITAN, 62.0, "reserved", "llama3-8b", 128, **_COMPILED),
    Row(
        "8 GPUs, compile, float8", TITAN, 76.8, "reserved", "llama3-8b", 8, float8=True, **_COMPILED
    ),
    Row(
        "128 GPUs, compile, float8",
        TITAN,
        61.8,
        "reserved",
        "llama3-8b",
        128,
        float8=True,
        **_COMPILED,
    ),
    Row(
        "8 GPUs, 32,768 tokens, compile, float8",
        TITAN,
        83.9,
        "reserved",
        "llama3-8b",
        8,
        batch=1,
        seq=32768,
        keeps="full",
        float8=True,
        **_COMPILED,
    ),
    Row(
        "70B on 256 GPUs, 8 of a tensor, compile, float8",
        TITAN,
        71.9,
        "reserved",
        "llama3-70b",
        256,
        tensor=8,
        batch=16,
        keeps="full",
        float8=True,
        with_torch="2.6",
        **_COMPILED,
    ),
    Row("32 H200, compile, float8", TRAINY, 47.96, "reserved", "llama3-8b", 32, **_2025),
    Row("64 H200, compile, float8", TRAINY, 46.97, "reserved", "llama3-8b", 64, **_2025),
    Row("8 GPUs, one loss", LOSS, 49.58, "reserved", "llama3-8b", 8, **_OF_2025),
    Row(
        "8 GPUs, loss in 8 chunks",
        LOSS,
        42.26,
        "reserved",
        "llama3-8b",
        8,
        pieces=8,
        **_OF_2025,
    ),
    Row("7B, eager, in use", SHARDED, 22.73, "active", keeps="full", with_torch="2.4", **_7B),
    Row("7B, eager", SHARDED, 31.02, "reserved", keeps="full", with_torch="2.4", **_7B),
    Row("7B, eager, selective, in use", SHARDED, 49.54, "active", with_torch="2.5", **_7B),
    Row("7B, eager, selective", SHARDED, 59.41, "reserved", with_torch="2.5", **_7B),
    _tuned("3B, packed", 60.0),
    _tuned("3B, and compile", 51.0, **_COMPILED),
    _tuned("3B, and cross entropy in chunks", 42.9, **_PIECES),
    _tuned("3B, and checkpointing", 24.9, **_LEAN),
    _tuned("3B, and optimizer in backward", 23.1, **_LEAN, in_backward=True),
    _tuned("3B, and offloading", 21.8, **_LEAN, in_backward=True, offload=True),
    _tuned("3B, LoRA of rank 64", 8.5, **_LEAN, rank=64, offload=True),
    Row(
        "8B, LoRA, A6000",
        TUNE_8B,
        30.3,
        "active",
        seq=2048,
        keeps="all",
        device="a100-80gb",
        **_8B,
    ),
    Row(
        "8B, LoRA, 4090",
        TUNE_8B,
        16.2,
        "active",
        seq=2048,
        keeps="full",
        offload=True,
        device="rtx4090",
        **_8B,
    ),
)


UNCACHED = "2.6"
"""Its Inductor caches no graph with a collective or a checkpoint: each run compiles."""

MOST_RUNS = 3
"""The first may find no graph in Inductor's cache, the second some: others came of its own run."""


def run(row: Row, python: str) -> dict[str, Any] | None:
    """The peaks of a row, by PyTorch's allocator; ``None`` where the step fails."""
    for _ in range(MOST_RUNS):
        measured = run_once(row, python)
        if measured is None or not measured["compiled_anew"] or row.with_torch == UNCACHED:
            return measured
    anew = f"compiles {measured['compiled_anew']} graphs anew in each of {MOST_RUNS} runs"
    print(f"{row.name} {anew}: its reserved bytes depend on that", file=sys.stderr, flush=True)
    return None


def run_once(row: Row, python: str) -> dict[str, Any] | None:
    """One process of it; `compiled_anew` says how many graphs Inductor did not find compiled."""
    command = [python, "-m", "schedsim.validation.dry_cuda", "--device", row.device]
    command += ["--memory", "400GB", "--", "python", str(HERE / "calibration_step.py")]
    environment = {**os.environ, "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}
    if row.conf:
        # The second name is that of PyTorch up to 2.8.
        environment |= dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), row.conf)
    done = subprocess.run(
        [*command, json.dumps(asdict(row))],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode:
        print(f"{row.name} failed\n{done.stderr[-3000:]}", file=sys.stderr, flush=True)
        return None
    return asdict(row) | dict(json.loads(done.stdout.splitlines()[-1]))


def torch_of(python: str) -> str:
    """The version of torch in the environment of `python`, without its last number."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return ".".join(done.stdout.split(".")[:2])


def compared(row: dict[str, Any]) -> float:
    """What the dry device says, over what was published, less one."""
    return float(row[f"{row['quantity']}_bytes"] / 2**30 / row["published_gib"] - 1)


def page(rows: list[dict[str, Any]]) -> str:
    """The table, in Markdown."""
    errors = [abs(compared(row)) for row in rows]
    close = sum(error <= 0.01 for error in errors)
    lines = [
        "# The dry CUDA device against published peaks",
        "",
        "PyTorch's own CUDA allocator and code; kernels not run; no times. Written by",
        "`benchmarks/dry_calibration.py`: models of our own at the sources' settings.",
        "",
        "Compiled steps ran with a warm cache of Inductor: no graph was compiled in the run that",
        "was measured. With a cold one, active bytes are the same, and reserved ones differ by up",
        "to 0.6 %. Torch 2.6 caches no graph with a collective or a checkpoint.",
        "",
        f"{len(rows)} rows of {len({row['source'] for row in rows})} sources: median error "
        f"{100 * statistics.median(errors):.2f} %, {close} within 1 %.",
        "",
        "| source | step | torch | published | active | reserved | compared | error |",
        "|---|---|---|--:|--:|--:|---|--:|",
    ]
    for row in rows:
        active, reserved = (row[f"{name}_bytes"] / 2**30 for name in ("active", "reserved"))
        lines.append(
            f"| {row['source']} | {row['name']} | {row['with_torch']} "
            f"| {row['published_gib']} GiB | {active:.2f} GiB "
            f"| {reserved:.2f} GiB | {row['quantity']} | {100 * compared(row):+.2f} % |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run what is asked, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", action="append", help="of an environment with CUDA torch; one for each version"
    )
    parser.add_argument("--only", nargs="*", help="these rows, by their names")
    parser.add_argument("--compiled", action="store_true", help="the compiled ones, once more")
    given = parser.parse_args()
    known = {row["name"]: row for row in _known()}
    wanted = {row.name for row in ROWS_ASKED} - set(known) if given.only is None else given.only
    if given.compiled:
        wanted = {row.name for row in ROWS_ASKED if row.compiled or row.compiled_loss}
    pythons = {torch_of(python): python for python in given.python or [sys.executable]}
    failed = 0
    for row in ROWS_ASKED:
        if row.name not in wanted:
            continue
        if row.with_torch not in pythons:
            print(f"{row.name} needs torch {row.with_torch}: --python ENV", file=sys.stderr)
            failed += 1
            continue
        measured = run(row, pythons[row.with_torch])
        if measured is None:
            failed += 1
        else:
            known[row.name] = measured
            order = [known[one.name] for one in ROWS_ASKED if one.name in known]
            ROWS.write_text("".join(json.dumps(one) + "\n" for one in order))
            PAGE.write_text(page(order))
            print(f"{row.name}: {100 * compared(measured):+.2f} %", flush=True)
    return 1 if failed else 0


def _known() -> list[dict[str, Any]]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


if __name__ == "__main__":
    sys.exit(main())
