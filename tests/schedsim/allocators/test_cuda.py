"""The model of the caching allocator against the real one, on a CUDA device."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from schedsim.allocators import CachingOptions, Requests, play

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

# Asks for bytes and gives them back as told on stdin; says what is reserved after each. An empty
# cache tells streams of requests apart; one process serves all, because starting it takes long.
SCRIPT = """
import json, sys
import torch
told = []
for sizes, items in json.load(sys.stdin):
    live, said = {}, []
    for item in items:
        if item < 0:
            del live[~item]
        else:
            live[item] = torch.empty(sizes[item], dtype=torch.uint8, device="cuda")
        stats = torch.cuda.memory_stats()
        said.append([stats[f"{name}_bytes.all.current"] for name in ("reserved", "allocated")])
    live.clear()
    torch.cuda.empty_cache()
    told.append(said)
print(json.dumps(told))
"""

NUM_STREAMS = 3


def random_requests(seed: int, num_requests: int = 400) -> Requests:
    """Sizes from 1 byte to 60 MiB, all different, so that hardly any two blocks are equal."""
    rng = np.random.default_rng(seed)
    items: list[int] = []
    live: list[int] = []
    sizes: list[int] = []
    while len(items) < num_requests:
        if live and rng.random() < 0.45:
            items.append(~live.pop(int(rng.integers(len(live)))))
        else:
            live.append(len(sizes))
            items.append(len(sizes))
            sizes.append(int(2 ** rng.uniform(0, np.log2(60 << 20))))
    return Requests(
        items=np.array(items),
        events=np.arange(len(items)),
        item_bytes=np.array(sizes),
        item_stream=np.zeros(len(sizes), dtype=np.int64),
        item_names=tuple(map(str, range(len(sizes)))),
        num_events=len(items),
    )


@pytest.mark.parametrize(
    "conf",
    [
        "",
        "max_split_size_mb:32",
        "roundup_power2_divisions:4",
        "expandable_segments:True",
    ],
)
def test_reserved_bytes_are_those_of_the_device(conf):
    streams = [random_requests(seed) for seed in range(NUM_STREAMS)]
    environment = {**os.environ, "PYTORCH_ALLOC_CONF": conf, "PYTORCH_CUDA_ALLOC_CONF": conf}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([[r.item_bytes.tolist(), r.items.tolist()] for r in streams]),
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    options = CachingOptions.parse(conf)
    fields = {name: getattr(options, name) for name in CachingOptions.__dataclass_fields__}
    for requests, told in zip(streams, json.loads(done.stdout), strict=True):
        reserved, allocated = np.array(told).T
        got = play(requests, "cuda-caching", **fields)
        assert got.allocated_bytes.tolist() == allocated.tolist()
        assert got.reserved_bytes.tolist() == reserved.tolist()
