"""The first step of a compiled GPT-2: capture, plan and compilation, beside torch.compile's own.

    OMP_NUM_THREADS=1 python benchmarks/bench_cold_compile.py [LAYERS ...]

Each step is made in a process of its own with empty caches of inductor, after imports and the
kernels of schedsim are there. By default 12 layers and 1. Takes some minutes and a C++ compiler.
Seconds are of the clock and of the processor, its C++ compilers included.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time

WAYS = ("schedsim", "torch.compile")
LAYERS = (12, 1)


def first_step(way: str, layers: int) -> None:
    """Print the seconds of one first step, in this process."""
    import torch
    from schedsim.validation.models import build_model

    import schedsim

    sizes = {"hidden": 64, "heads": 4, "vocab": 97, "batch": 4, "seq": 64}
    model, inputs, loss = build_model("gpt2", layers=layers, **sizes)
    small = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    torch.compile(small)(torch.randn(8, 4)).sum().backward()
    if way == "schedsim":
        schedsim.rematerialize(
            small, torch.randn(8, 4), "100%", lambda out: out.sum(), effort=0.1, compile=True
        )
    clock, processor = time.perf_counter(), _processor_s()
    if way == "schedsim":
        schedsim.rematerialize(model, inputs, "60%", loss, compile=True)(*inputs).backward()
    else:
        torch.compile(lambda *given: loss(model(*given)))(*inputs).backward()
    taken = time.perf_counter() - clock, _processor_s() - processor
    print(f"{way}, {layers} layers: {taken[0]:.1f} s, {taken[1]:.1f} s of the processor")


def _processor_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(layers: list[int]) -> None:
    """Each way and number of layers in a process, twice: the first makes schedsim's kernels."""
    for number in layers:
        for way in WAYS:
            for again in (False, True):
                with tempfile.TemporaryDirectory() as cache:
                    done = subprocess.run(
                        [sys.executable, __file__, way, str(number)],
                        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                if again:
                    print(done.stdout.splitlines()[-1], flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in WAYS:
        first_step(sys.argv[1], int(sys.argv[2]))
    else:
        main([int(word) for word in sys.argv[1:]] or list(LAYERS))
