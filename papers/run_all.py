"""Run the sources and write the results: a line a claim, the tables of the notes, the summary.

python papers/run_all.py --instances FOLDER            # all, about five minutes on two cores
python papers/run_all.py --instances FOLDER chen-2016  # some; the others' results stay
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _claims import (
    SEEN,
    VERDICTS,
    Claim,
    as_dict,
    as_markdown,
    as_text,
    draw,
    find_instances,
    from_dict,
    load_source,
)

from schedsim.files.atomic import write_atomically

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"


def folders() -> list[Path]:
    """The folders of the sources, by name."""
    return sorted(path.parent for path in HERE.glob("*/reproduce.py"))


def run_one(folder: Path, instances_folder: str | None) -> tuple[list[dict[str, Any]], float, str]:
    """The claims of one source, with its figure drawn: (claims, seconds, error)."""
    started = time.perf_counter()
    try:
        module = load_source(folder)
        instances = find_instances(instances_folder)
        found = [as_dict(claim) for claim in module.claims(instances)]
        if instances:
            draw(folder, module.figure, instances)
    except Exception:
        # One source must not end the others, which run beside it.
        return [], time.perf_counter() - started, traceback.format_exc()
    return found, time.perf_counter() - started, ""


def read_results() -> dict[str, list[Claim]]:
    """Claims by source, from the file; the verdicts are computed again."""
    found: dict[str, list[Claim]] = {}
    if RESULTS.exists():
        for line in RESULTS.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found.setdefault(row["source"], []).append(from_dict(row))
    return found


def as_lines(results: dict[str, list[Claim]]) -> str:
    """One JSON object a line."""
    rows = [
        {"source": name} | as_dict(claim) for name in sorted(results) for claim in results[name]
    ]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def summary(results: dict[str, list[Claim]]) -> str:
    """The table of all sources, and the totals."""
    lines = [
        "| source | reproduced | numbers | agree | differ | checks of ours "
        "| not reproducible here |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    claims = [claim for name in sorted(results) for claim in results[name]]

    def count(some: list[Claim]) -> str:
        verdicts = [claim.verdict for claim in some]
        cells = [len(some), *map(verdicts.count, VERDICTS)]
        return " | ".join(str(cell) for cell in cells)

    for name in sorted(results):
        source = load_source(HERE / name).SOURCE
        lines.append(
            f"| [{source.title}]({name}/README.md) | {source.what} | {count(results[name])} |"
        )
    lines.append(f"| **{len(results)} sources** | | {count(claims)} |")
    lines += [
        "",
        "| how the claimed number was seen | numbers | agree | differ | checks of ours "
        "| not reproducible here |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for seen, words in SEEN.items():
        some = [claim for claim in claims if claim.seen == seen]
        if some:
            lines.append(f"| *{seen}*: {words} | {count(some)} |")
    return "\n".join(lines)


def between(text: str, marker: str, content: str) -> str:
    """`text` with what stands between its two comments replaced."""
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"there must be one {begin} and one {end}")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n\n{content}\n\n{end}{tail}"


def write_between(path: Path, marker: str, content: str) -> None:
    """Replace what stands between the comments of a file."""
    try:
        text = between(path.read_text(encoding="utf-8"), marker, content)
    except ValueError as error:
        sys.exit(f"error: {path}: {error}\nhint: put the table between them")
    write_atomically(path, text)


def main() -> int:
    """The command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="folders; all by default")
    parser.add_argument("--instances", metavar="FOLDER", help="or SCHEDSIM_INSTANCES")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    options = parser.parse_args()
    known = {folder.name: folder for folder in folders()}
    for name in options.sources:
        if name not in known:
            print(f"error: no source {name!r}", file=sys.stderr)
            print(f"hint: one of {', '.join(known)}", file=sys.stderr)
            return 2
    chosen = options.sources or list(known)
    instances = find_instances(options.instances)
    place = str(instances.folder) if instances else None

    from joblib import Parallel, delayed

    # Planners time themselves out: threads of one process must not take the other's core.
    for variable in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    tasks = [delayed(run_one)(known[name], place) for name in chosen]
    answers = Parallel(n_jobs=options.jobs, return_as="generator")(tasks)
    results = read_results()
    failed = []
    for name, (rows, seconds, error) in zip(chosen, answers, strict=True):
        print(f"\n{name} ({seconds:.1f} s)")
        if error:
            print(error)
            failed.append(name)
            continue
        results[name] = [from_dict(row) for row in rows]
        print(as_text(results[name]))
    if not instances:
        print("\nnothing written: some numbers need --instances FOLDER", file=sys.stderr)
        return 1 if failed else 0
    for name in chosen:
        if name not in failed:
            content = as_markdown(results[name])
            write_between(known[name] / "README.md", "claims", content)
    kept = {name: claims for name, claims in results.items() if name in known}
    write_atomically(RESULTS, as_lines(kept))
    write_between(HERE / "README.md", "summary", summary(kept))
    if failed:
        print(f"error: {', '.join(failed)} failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
