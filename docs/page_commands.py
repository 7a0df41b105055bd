"""Runs the commands of every page: README, guide, how-to pages, tutorials, notes.

    python docs/page_commands.py                        # all, some twenty minutes
    python docs/page_commands.py docs/guide.md          # of a page
    python docs/page_commands.py --list                 # what is run, and what is not and why

A command is a line of a `sh` block, behind ``$`` in a console block, or at the beginning of a row
of a table. Those of a page run in its order in one folder, which holds what a reader has: a
workload, a model, a plan. Run it with the Python of a fresh environment in a fresh clone: what is
called there is the `schedsim` beside that Python. A command counts as failed where its exit code
is another one than the page lets expect, or where it ends with a traceback.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    "validation/training-stack.md",
    "papers/README.md",
)

NOT_RUN = (
    (r"^pip install", "makes the environment that this runs in"),
    (r"pytest -n auto", "the tests, which have a run of their own"),
    (r"dry_cuda|--device dry:", "takes PyTorch built for CUDA, and a training script"),
    (r"snapshot\.pickle", "takes a record of CUDA's allocator"),
    (r"^python benchmarks/rematlib/check\.py( +#|$)", "some minutes; a test checks the library"),
    (r"standings\.py|solve\.py", "writes into the repository"),
    (r"submit\.py better\.json --by", "writes into the repository"),
    (r"convert\.py", "takes graphs of others, which are not here"),
    (r"run_all\.py|/reproduce\.py", "half an hour, and instances that a reader has"),
)
"""Commands that are not run, by pattern, with the reason."""

ANSWERS_NO = ("python benchmarks/rematlib/submit.py",)
"""Beginnings of commands whose answer may be no, with exit code 1."""

_CHAIN = (
    "import schedsim; from schedsim.workloads import WorkloadOptions as O, build_workload as b; "
)
_GPT = "O(preset='gpt2-xl', layers=12, batch=8, granularity='op')"
_MODEL = """import torch


def build():
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())
                                  for _ in range(8)))
    return model, (torch.randn(32, 64), torch.zeros(32, 64)), torch.nn.functional.mse_loss
"""
_STREAMS = """import schedsim
from schedsim.plans.links import parse_link, with_copies
chain = schedsim.Chain.from_arrays(
    "twelve", 4_000_000, forward_s=[0.001] * 12, backward_s=[0.002] * 12,
    output_bytes=[4_000_000] * 12, saved_bytes=[20_000_000] * 12)
link = parse_link("25GB/s", 1e-5)
schedsim.save(with_copies(chain, d2h=link, h2d=link), "copies.json")
runs = []
for i in range(12):
    runs += [f"F{i}"] + ([f"d2h:r{i + 1}"] if i < 6 else [])
runs += ["loss"]
for i in reversed(range(12)):
    runs += [f"B{i}"] + ([f"h2d:r{i}"] if 1 <= i <= 6 else [])
open("runs.txt", "w").write(" ".join(runs))
"""
READY = {
    "README.md": (
        ("my_model.py", _MODEL),
        ("make.py", f"{_CHAIN}schedsim.save(b({_GPT}).workload, 'graph.json')"),
        ("run", "schedsim plan --layers 96 --mem 8GB -o plan.json"),
    ),
    "docs/certificates.md": (
        ("make.py", f"{_CHAIN}schedsim.save(b(O(layers=12)).workload, 'chain.json')"),
    ),
    "docs/persistent.md": (
        ("make.py", f"{_CHAIN}schedsim.save(b(O(layers=12)).workload, 'chain.json')"),
    ),
    "docs/guide.md": (
        ("make.py", f"{_CHAIN}schedsim.save(b(O(preset='mixtral-8x7b', layers=2, "
                    "granularity='op')).workload, 'graph.json')"),
        ("make.py", _STREAMS),
    ),
    "docs/gallery.md": (
        ("run", "schedsim plan --layers 24 --mem 8GB -o plan.json"),
        ("run", "schedsim sweep experiment.toml -o results.jsonl"),
    ),
}  # fmt: skip
"""The things that a reader of a page has: files, scripts to run (`make.py`), commands (`run`)."""

BEFORE = {
    "schedsim validate my_model.py:build plan.json": (
        "schedsim plan my_model.py:build --mem 24GiB -o plan.json"
    ),
}
"""Files that a command of a table needs, and that no other row of the table makes."""

_NAMED = re.compile(r"^```toml\n(# (\S+)\n.*?)^```", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| `((?:schedsim|python) [^`]*)`", re.MULTILINE)
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+[^\n]*\n(.*?)```", re.DOTALL)
_BUDGET = "BUDGET"


@dataclass(frozen=True)
class Command:
    """A command of a page.

    Attributes
    ----------
    reason
        Why it is not run; empty where it is.
    fails
        Whether the page shows that it ends with an error.
    """

    page: str
    line: int
    text: str
    reason: str = ""
    fails: bool = False

    def is_as_shown(self, code: int) -> bool:
        """Whether the exit code `code` is what the page lets a reader expect."""
        if self.fails:
            return code in (1, 2)
        return code == 0 or (code == 1 and self.text.startswith(ANSWERS_NO))


def commands(page: str, text: str) -> Iterator[Command]:
    """The commands of a page, in its order."""
    found: list[tuple[int, str, bool]] = []
    for match in _FENCE.finditer(text):
        if match[2] in ("sh", "console", "text"):
            found += _of_block(match[3], match.start(3), prompts=match[2] != "sh")
    found += [(match.start(1), match[1], False) for match in _ROW.finditer(text)]
    for at, command, fails in sorted(found):
        why = next((why for pattern, why in NOT_RUN if re.search(pattern, command)), "")
        yield Command(page, text.count("\n", 0, at) + 1, command, why, fails)


def _of_block(content: str, at: int, *, prompts: bool) -> Iterator[tuple[int, str, bool]]:
    """Where each command of a block begins, itself, and whether an error stands below it."""
    begun, whole, shown = at, "", ""
    done: tuple[int, str] | None = None
    for line in content.splitlines(keepends=True):
        stripped = line.strip()
        begins = stripped.startswith("$ ") if prompts else bool(stripped) and stripped[0] != "#"
        if whole or begins:
            if not whole:
                if done is not None:
                    yield *done, "\nerror:" in shown
                begun, shown = at, "\n"
            whole += stripped.removeprefix("$ ")
            if whole.endswith("\\"):
                whole = whole[:-1]
            else:
                done, whole = (begun, whole), ""
        else:
            shown += line.lstrip()
        at += len(line)
    if done is not None:
        yield *done, "\nerror:" in shown


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """`command` in a shell, with the Python that runs this, and what lies beside it, first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "110"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
    )


def prepare(page: str, folder: Path) -> None:
    """Put the things that a reader of `page` has into `folder`."""
    for name in ("benchmarks", "examples", "papers", "validation"):
        (folder / name).symlink_to(ROOT / name)
    guide = (ROOT / "docs/guide.md").read_text()
    for content, name in _NAMED.findall(guide):  # the experiment of the guide, for every page
        (folder / name).write_text(content)
    for name, content in READY.get(page, ()):
        if name != "run":
            (folder / name).write_text(content)
        if name in ("run", "make.py"):
            done = run(content if name == "run" else "python make.py", folder)
            if done.returncode:
                raise SystemExit(f"{page}: {done.stderr}")
    for name, content in _FILE.findall((ROOT / page).read_text()):
        (folder / name).write_text(content)


def budget_of(command: str) -> str:
    """`command` with the second budget of the instance where it says BUDGET."""
    if _BUDGET not in command:
        return command
    import json

    rows = json.loads((ROOT / "benchmarks/rematlib/index.json").read_text())["instances"]
    row = next(row for row in rows if row["file"] in command)
    return command.replace(_BUDGET, str(row["budgets_bytes"][0]))


def main(arguments: list[str]) -> int:
    """0: all ran as their pages say; 1: some did not."""
    failed = count = 0
    listing = "--list" in arguments
    for page in [name for name in arguments if name != "--list"] or PAGES:
        text = (ROOT / page).read_text()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            wanted = list(commands(page, text))
            if any(not one.reason for one in wanted) and not listing:
                prepare(page, folder)
            for one in wanted:
                where = f"{one.page}:{one.line}"
                if one.reason or listing:
                    print(
                        f"{'not run' if one.reason else 'run':8} {where}: {one.text}"
                        + (f"  [{one.reason}]" if one.reason else "")
                    )
                    continue
                if one.text in BEFORE:
                    run(BEFORE[one.text], folder)
                began = time.monotonic()
                done = run(budget_of(one.text), folder)
                count += 1
                good = one.is_as_shown(done.returncode) and "Traceback" not in done.stderr
                took = f"{time.monotonic() - began:.1f} s"
                print(
                    f"{'ok' if good else 'FAILED':8} {where}: {one.text}  "
                    f"[{done.returncode}, {took}]",
                    flush=True,
                )
                if not good:
                    failed += 1
                    print(done.stderr[-1500:] or done.stdout[-500:], flush=True)
    print(f"{count} commands run, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
