"""Speed of the allocator models, and what allocators reserve for plans of language models.

Needs nothing but schedsim: ``python benchmarks/bench_allocators.py``. Times are medians of five
runs in one process, without the first, which compiles.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

import schedsim
from schedsim.allocators import ALLOCATORS, Requests, allocate, play
from schedsim.workloads import WorkloadOptions, build_workload

SETTINGS: list[tuple[str, dict[str, bool]]] = [
    *((name, {}) for name in ALLOCATORS),
    ("cuda-caching", {"expandable_segments": True}),
]


def random_requests(num_requests: int, num_live: int) -> Requests:
    """As many requests as releases, sizes from 256 bytes to 16 MiB, up to `num_live` at once."""
    rng = np.random.default_rng(0)
    items: list[int] = []
    live: list[int] = []
    num_items = num_requests // 2
    for item in range(num_items):
        items.append(item)
        live.append(item)
        while len(live) > num_live or (live and rng.random() < 0.4):
            items.append(~live.pop(int(rng.integers(len(live)))))
    items += [~item for item in live]
    return Requests(
        items=np.array(items),
        events=np.arange(len(items)),
        item_bytes=(2 ** rng.uniform(8, 24, num_items)).astype(np.int64),
        item_stream=np.zeros(num_items, dtype=np.int64),
        item_names=("",) * num_items,
        num_events=len(items),
    )


def show_speed() -> None:
    """Requests and releases per second."""
    print(f"{'allocator':<28}{'requests':>10}{'live':>8}{'time':>10}{'per second':>14}")
    for num_live in (100, 2000, 20_000):
        requests = random_requests(100_000, num_live)
        for name, options in SETTINGS:
            times = []
            for _ in range(6):
                started = time.perf_counter()
                play(requests, name, **options)
                times.append(time.perf_counter() - started)
            took = statistics.median(times[1:])
            label = name + (" expandable" if options else "")
            rate = requests.items.size / took
            print(
                f"{label:<28}{requests.items.size:>10,}{num_live:>8,}"
                f"{took * 1e3:>7.1f} ms{rate / 1e6:>12.2f} M"
            )


def show_reserved() -> None:
    """Reserved over requested bytes of optimal plans, by budget, and plans within the reserved."""
    print(f"\n{'workload':<22}{'budget':>8}" + "".join(f"{_label(s):>16}" for s in SETTINGS))
    chains = {
        "24 layers of GPT-3": WorkloadOptions(layers=24),
        "gpt2-xl, batch 8": WorkloadOptions(preset="gpt2-xl", batch=8),
        "llama2-7b, batch 1": WorkloadOptions(preset="llama2-7b"),
    }
    for label, options in chains.items():
        chain = build_workload(options).workload
        everything = schedsim.simulate(chain, schedsim.Schedule.store_all(chain))
        for share in (1.0, 0.5, 0.3, 0.2):
            budget = int(share * everything.peak_bytes)
            simulation = schedsim.simulate(chain, schedsim.plan(chain, budget).schedule)
            cells = [
                f"{allocate(simulation, name, num_steps=2, **more).extra:>15.2%} "
                for name, more in SETTINGS
            ]
            print(f"{label:<22}{share:>7.0%} " + "".join(cells))


def _label(setting: tuple[str, dict[str, bool]]) -> str:
    return "expandable" if setting[1] else setting[0]


if __name__ == "__main__":
    show_speed()
    show_reserved()
