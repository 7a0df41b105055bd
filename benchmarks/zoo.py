"""Models of all kinds, most of them other people's, trained within budgets: is it the plain step?

    python benchmarks/zoo.py                            # every row that the table lacks
    python benchmarks/zoo.py --models llama,detr --ways "in place"
    python benchmarks/zoo.py --again                    # those that were not equal, once more
    python benchmarks/zoo.py --report                   # the table alone

Each model trains some steps with AdamW, dropout and all, plainly and within three budgets by each
way that a user has: `rematerialize` as it chooses, by blocks, and in place. Losses, gradients,
parameters, buffers and the generator of every step are compared to the bit, and the allocator's
peak with the budget. Needs the extra `torch`; models of transformers, torchvision, timm, diffusers,
torch_geometric and peft are left out where these are not installed. Rows go to a file as they are
made, and what is in it is not tried again. Each model has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
MOST_SECONDS = 1500


class RowsFile:
    """One JSON object a line, by model, way and budget; a later one replaces an earlier."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """The rows, the last of each key."""
        text = self.path.read_text() if self.path.exists() else ""
        found = [json.loads(line) for line in text.splitlines()]
        return {(row["model"], row["way"], row["budget"]): row for row in found}

    def add(self, row: dict[str, Any]) -> None:
        """Append `row`."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def write(self, rows: list[dict[str, Any]]) -> None:
        """`rows` in the place of all."""
        self.path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def tried_apart(entry: Any, way: str, shares: tuple[float, ...], file: RowsFile) -> None:
    """The rows of one model by one way, in a process that may die."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(MOST_SECONDS)
            from zoo_models.trial import rows

            for row in rows(entry, way, shares):
                show(row)
                file.add(row)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        how = f"signal {status}" if os.WIFSIGNALED(status) else "see the log"
        row = {"model": entry.name, "family": entry.family, "source": entry.source, "way": way}
        row |= {
            "budget": f"{shares[0]:.0%}",
            "result": "CRASH",
            "says": f"the process ended: {how}",
        }
        show(row)
        file.add(row)


def show(row: dict[str, Any]) -> None:
    """A line for who watches."""
    says = row.get("differs") or row.get("says", "")
    where = f"{row['model']:<24}{row['way']:<12}{row['budget']:>5} {row.get('level', ''):<7}"
    print(f"{where}{row.get('seconds', 0):>6.1f} s  {row['result']}  {says}"[:400], flush=True)


def installed(source: str) -> bool:
    """Whether the package that a model is of is there."""
    from importlib.util import find_spec

    name = source.partition(".")[0]
    return name == "here" or find_spec(name) is not None


def main() -> None:
    """Try what is asked for, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help="names or families, with commas between")
    parser.add_argument("--ways", default="", help="with commas between")
    parser.add_argument("--again", action="store_true", help="rows that are not equal, once more")
    parser.add_argument("--all-again", action="store_true", help="every row that is asked for")
    parser.add_argument("--report", action="store_true", help="write the table alone")
    parser.add_argument("--results", type=Path, default=RESULTS / "zoo.jsonl")
    args = parser.parse_args()
    from zoo_models import ENTRIES
    from zoo_models.zoo_page import write_page

    file = RowsFile(args.results)
    if not args.report:
        import torch
        from zoo_models.trial import CRASH, EQUAL, REFUSED, SHARES, WAYS

        torch.set_num_threads(1)
        wanted = [text.strip() for text in args.models.split(",") if text.strip()]
        ways = [text.strip() for text in args.ways.split(",") if text.strip()] or list(WAYS)
        known = file.read()
        started = time.monotonic()
        chosen = []
        for entry in ENTRIES.values():
            if wanted and entry.name not in wanted and entry.family not in wanted:
                continue
            if not installed(entry.source):
                print(f"{entry.name}: left out, {entry.source} is not installed")
                continue
            chosen.append(entry)
        for way in ways:
            # In place each budget is traced anew: the middle one of every model comes first.
            rounds = [(0.6,), (0.8, 0.45)] if way == "in place" else [SHARES]
            for shares in rounds:
                for entry in chosen:
                    found = [known.get((entry.name, way, f"{share:.0%}")) for share in shares]
                    rows = [row for row in found if row is not None]
                    unequal = any(row["result"] != EQUAL for row in rows)
                    over = any(
                        row["result"] in (REFUSED, CRASH)
                        for (model, by, _), row in known.items()
                        if (model, by) == (entry.name, way)
                    )
                    lacks = len(rows) < len(shares) and not over
                    if lacks or args.all_again or (args.again and unequal):
                        tried_apart(entry, way, shares, file)
                        known = file.read()
        print(f"{time.monotonic() - started:.0f} s")
    latest = file.read()
    order = {name: i for i, name in enumerate(ENTRIES)}
    rows = [row for row in latest.values() if row["model"] in order]
    rows.sort(key=lambda row: order[row["model"]])
    file.write(rows)
    write_page(rows, args.results.with_suffix(".md"), len(ENTRIES))


if __name__ == "__main__":
    main()
