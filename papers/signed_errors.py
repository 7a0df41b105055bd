"""Signed errors of all published steps together, in two halves that a hash decides.

python papers/signed_errors.py                    # the table, of results.jsonl
python papers/signed_errors.py OLDER.jsonl        # beside earlier results
python papers/signed_errors.py --rows             # every row

A row is in the half that is looked at if the first byte of the SHA-256 of its name is even; what is
read in the errors is read there, and the other half says whether it holds. The error is that of the
time: below 0 where the step is predicted too fast.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results.jsonl"
_RATES = ": tokens per second and device", ", tokens per second and device", ": Tflop/s a GPU"
_SECONDS = ": seconds of an iteration"
_SOURCES = "torchtitan", "llm-foundry", "held-out", "megatron-bridge", "cluster-steps"


def read(path: Path) -> dict[tuple[str, str], float]:
    """(source, name of the row) -> signed error of its time."""
    found: dict[tuple[str, str], float] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["source"] not in _SOURCES:
            continue
        claimed, ours, what = row["claimed"], row["ours"], row["what"]
        for end in _RATES:
            if what.endswith(end):
                found[row["source"], what.removesuffix(end)] = claimed / ours - 1
        if what.endswith(_SECONDS):
            found[row["source"], what.removesuffix(_SECONDS)] = ours / claimed - 1
    return found


def is_looked_at(source: str, name: str) -> bool:
    """Whether a row is in the half that is looked at."""
    return hashlib.sha256(f"{source}/{name}".encode()).digest()[0] % 2 == 0


def _cells(errors: list[float]) -> str:
    size = [abs(one) for one in errors]
    within = sum(one <= 0.15 for one in size)
    return f"{100 * median(size):.1f} % | {within} | {100 * median(errors):+.1f} %"


def table(found: dict[tuple[str, str], float], before: dict[tuple[str, str], float]) -> str:
    """Medians and counts by source and half, in Markdown."""
    kinds = ("before", "now") if before else ("",)
    heads = [f"{what}, {kind}".rstrip(", ") for kind in kinds for what in _COLUMNS]
    lines = [f"| rows | number | {' | '.join(heads)} |", f"|---|{'--:|' * (1 + len(heads))}"]
    halves: dict[str, Callable[[tuple[str, str]], bool]] = {
        "looked at": lambda key: is_looked_at(*key),
        "held out": lambda key: not is_looked_at(*key),
        "both": lambda key: True,
    }
    for half, belongs in halves.items():
        for source in (*_SOURCES, ""):
            keys = [key for key in found if belongs(key) and source in ("", key[0])]
            keys = [key for key in keys if not before or key in before]
            if not keys:
                continue
            of = [before, found] if before else [found]
            cells = " | ".join(_cells([one[key] for key in keys]) for one in of)
            lines.append(f"| {half}, {source or 'all'} | {len(keys)} | {cells} |")
    return "\n".join(lines)


_COLUMNS = "median error", "within 15 %", "signed median"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", nargs="?", type=Path, help="earlier results")
    parser.add_argument("--rows", action="store_true", help="every row")
    asked = parser.parse_args()
    found = read(RESULTS)
    before = read(asked.before) if asked.before else {}
    if asked.rows:
        for key, error in sorted(found.items(), key=lambda item: item[1]):
            half = "looked at" if is_looked_at(*key) else "held out"
            was = f"{100 * before[key]:+6.1f} " if key in before else ""
            print(f"{was}{100 * error:+6.1f} %  {half:9}  {'/'.join(key)}")
    print(table(found, before))


if __name__ == "__main__":
    main()
