"""Seconds and memory to capture the training steps of large models, none of which is allocated.

    python benchmarks/bench_capture.py [NAME ...]

Names: gpt2-xl (1.6 billion parameters, batch 8 of 1024), llama-7b (bf16, batch 2 of 4096), both by
transformers. Each runs in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("gpt2-xl", "llama-7b")


def build(name: str) -> tuple[Any, tuple[int, int]]:
    """The model called `name` on the meta device, and the shape of its tokens."""
    import torch
    import transformers

    with torch.device("meta"):
        if name == "gpt2-xl":
            config = transformers.GPT2Config(n_embd=1600, n_layer=48, n_head=25)
            return transformers.GPT2LMHeadModel(config), (8, 1024)
        config = transformers.LlamaConfig(max_position_embeddings=4096)
        return transformers.LlamaForCausalLM(config).to(torch.bfloat16), (2, 4096)


def resident_bytes() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def measure(name: str) -> dict[str, Any]:
    """One row of the table."""
    import torch
    from schedsim.validation.capture import capture

    from schedsim import Schedule, simulate

    def loss(output: Any, targets: Any) -> Any:
        logits = output.logits.flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, targets.flatten())

    model, shape = build(name)
    tokens = torch.zeros(shape, dtype=torch.long, device="meta")
    before = resident_bytes()
    start = time.perf_counter()
    captured = capture(model, (tokens, tokens), loss, kwargs={"use_cache": False}, kernels="cuda")
    seconds = time.perf_counter() - start
    grown = resident_bytes() - before
    peak = simulate(captured.graph, Schedule.store_all(captured.graph)).peak_bytes
    return {
        "name": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "ops": captured.graph.num_ops,
        "capture_s": round(seconds, 2),
        "resident_before_mb": before // 10**6,
        "resident_grown_mb": grown // 10**6,
        "store_all_peak_gb": round(peak / 1e9, 1),
    }


def main(names: list[str]) -> None:
    """Print the table."""
    for name in names or NAMES:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, check=True
        )
        row = json.loads(done.stdout.splitlines()[-1])
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        main(sys.argv[1:])
