"""Runs the tests of real models on each version of torch, and writes docs/torch-versions.md.

``python benchmarks/torch_versions.py FOLDER`` makes an environment in FOLDER for every version (for
most, PyPI has the CUDA build alone: about 6 GB, one at a time, removed afterwards), installs torch
and what the tests need, and runs ``tests/validation``. ``--versions 2.15`` runs some, ``--tests``
a part, ``--path 2.14=DIR`` takes a torch that lies in DIR instead of installing one. Rows of the
page that were not run again stay.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "torch-versions.jsonl"
PAGE = ROOT / "docs" / "torch-versions.md"
VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")
# The packages of the extra dev that these tests import.
TOOLS = ("pytest", "hypothesis", "pyyaml", "transformers", "accelerate", "peft")
_CASE = "import torch; print(torch.__version__)"


@dataclass(frozen=True)
class VersionRun:
    """The results of the tests on one version of torch.

    Attributes
    ----------
    version
        As torch says it, with the build.
    folders
        Name of a folder or file of tests -> (passed, failed, skipped).
    failures
        Test -> first line of what it said.
    """

    version: str
    folders: dict[str, tuple[int, int, int]]
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def minor(self) -> str:
        """The version without its last number: 2.15."""
        return ".".join(self.version.split(".")[:2])

    @property
    def total(self) -> tuple[int, int, int]:
        """Over all folders."""
        passed, failed, skipped = zip(*self.folders.values(), strict=True)
        return sum(passed), sum(failed), sum(skipped)


def make_environment(version: str, folder: Path) -> Path:
    """A new environment with that torch; the interpreter in it."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *TOOLS]
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(p for p in pins if not p.startswith(("#", "torch=="))))
        constraints.flush()
        command = [str(python), "-m", "pip", "install", "-q", "-c", constraints.name]
        subprocess.run([*command, f"torch=={version}.*", *wanted], check=True)
    return python


def run_tests(python: Path, tests: list[str], path: str | None, limit_s: float) -> VersionRun:
    """Run `tests` with `python`, where `path` stands before its own packages."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [path, str(ROOT)]))
    found = subprocess.run(
        [str(python), "-c", _CASE], env=environment, check=True, capture_output=True, text=True
    )
    version = found.stdout.split()[-1]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        subprocess.run(
            [*command, f"--junitxml={report}", *tests],
            env=environment,
            cwd=ROOT,
            timeout=limit_s,
            check=False,
        )
        if not report.exists():
            raise SystemExit(f"torch {version}: pytest wrote no report")
        return read_report(version, report.read_text())


def read_report(version: str, text: str) -> VersionRun:
    """Counts by folder, and failures, of pytest's JUnit report."""
    folders: dict[str, list[int]] = {}
    failures: dict[str, str] = {}
    for case in ET.fromstring(text).iter("testcase"):
        parts = case.get("classname", "").split(".")
        place = parts[2] if len(parts) > 3 else parts[-1]
        counts = folders.setdefault(place, [0, 0, 0])
        kinds = {child.tag: child for child in case}
        bad = next((kinds[kind] for kind in ("failure", "error") if kind in kinds), None)
        counts[1 if bad is not None else 2 if "skipped" in kinds else 0] += 1
        if bad is not None:
            said = (bad.get("message") or "").strip().splitlines()
            failures[f"{place}: {case.get('name')}"] = said[0] if said else bad.tag
    ordered = {place: (c[0], c[1], c[2]) for place, c in sorted(folders.items())}
    return VersionRun(version, ordered, failures)


def page(runs: list[VersionRun]) -> str:
    """The table, as a page of the site."""
    places = sorted({place for run in runs for place in run.folders})
    lines = [
        "# Versions of torch",
        "",
        f"`pip install '.[torch]'` takes torch {VERSIONS[0]} to {VERSIONS[-1]}. Tests of",
        "real models on each, on the CPU (`python benchmarks/torch_versions.py FOLDER`):",
        "",
        "| torch | passed | failed | skipped |",
        "|---|---|---|---|",
    ]
    for run in runs:
        lines.append(f"| {run.version} | " + " | ".join(map(str, run.total)) + " |")
    lines += ["", "Passed and failed, by folder (a dash: not run):", ""]
    lines.append("| | " + " | ".join(run.minor for run in runs) + " |")
    lines.append("|---" * (len(runs) + 1) + "|")
    for place in places:
        cells = [_cell(run.folders.get(place)) for run in runs]
        lines.append(f"| {place} | " + " | ".join(cells) + " |")
    failing = [(run.minor, *item) for run in runs for item in run.failures.items()]
    if failing:
        lines += ["", "What failed:", ""]
        lines += [f"- {minor}, {test}: `{_short(said)}`" for minor, test, said in failing]
    lines += [
        "",
        "What schedsim uses of torch beyond what is documented lies in `validation/torch_private`,",
        "with a test for each function. Skipped tests need a GPU, or a package that was not there.",
    ]
    return "\n".join(lines) + "\n"


def _cell(counts: tuple[int, int, int] | None) -> str:
    if counts is None:
        return "-"
    return str(counts[0]) if not counts[1] else f"{counts[0]}, {counts[1]} failed"


def _short(said: str) -> str:
    # Addresses and temporary folders are of one run.
    text = re.sub(r"0x[0-9a-f]+|/tmp/\S+", "...", said).replace("`", "'")
    return text if len(text) <= 120 else f"{text[:117]}..."


def stored() -> list[VersionRun]:
    """The runs that are committed, oldest version first."""
    if not RESULTS.exists():
        return []
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    for row in rows:
        row["folders"] = {place: tuple(counts) for place, counts in row["folders"].items()}
    return [VersionRun(**row) for row in rows]


def store(run: VersionRun) -> None:
    """Put `run` in the place of an earlier one of its version, and write the page."""
    kept = {other.minor: other for other in stored()}
    before = kept.get(run.minor)
    if before is not None and before.version == run.version:
        places = {place for place in before.folders if place not in run.folders}
        folders = {place: before.folders[place] for place in places} | run.folders
        old = {t: s for t, s in before.failures.items() if t.partition(":")[0] in places}
        run = VersionRun(run.version, dict(sorted(folders.items())), old | run.failures)
    kept[run.minor] = run
    runs = sorted(kept.values(), key=lambda one: [int(n) for n in one.minor.split(".")])
    RESULTS.write_text("".join(json.dumps(asdict(one)) + "\n" for one in runs))
    PAGE.write_text(page(runs))


def main() -> int:
    """Run the versions asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where environments are made")
    parser.add_argument("--versions", nargs="+", default=VERSIONS)
    parser.add_argument("--tests", nargs="+", default=["tests/validation"])
    parser.add_argument("--path", action="append", default=[], metavar="VERSION=DIR")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--limit", type=float, default=7200, help="seconds for one version")
    given = parser.parse_args()
    paths = dict(item.split("=", 1) for item in given.path)
    num_failed = 0
    for version in given.versions:
        place = given.folder / f"torch-{version}"
        if version in paths:
            run = run_tests(Path(sys.executable), given.tests, paths[version], given.limit)
        else:
            python = place / "bin" / "python"
            python = python if python.exists() else make_environment(version, place)
            run = run_tests(python, given.tests, None, given.limit)
            if not given.keep:
                shutil.rmtree(place)
        if run.minor != version:
            raise SystemExit(f"asked for torch {version}, and {run.version} ran")
        store(run)
        passed, failed, skipped = run.total
        num_failed += failed
        print(f"torch {run.version}: {passed} passed, {failed} failed, {skipped} skipped")
    return int(num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
