"""Claims of the literature beside our numbers; the verdict is computed from the two."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Relation = Literal["equal", "at most", "at least"]
Seen = Literal["text", "abstract", "code", "second-hand", "plot", "formula", "memory", "folklore"]
SEEN: dict[Seen, str] = {
    "text": "printed in the source, or in what its authors published beside it",
    "abstract": "in its abstract",
    "code": "in its code or instances, or computed by its formula as coded",
    "second-hand": "quoted by somebody else",
    "plot": "read off a plot by eye, within 3 %",
    "formula": "its formula or model, evaluated",
    "memory": "recalled, confirmed in no source",
    "folklore": "repeated everywhere, published nowhere that was found",
}

AGREE, DIFFER, NOT_HERE = "agree", "differ", "not reproducible here"
CHECK = "check of ours"
VERDICTS = (AGREE, DIFFER, CHECK, NOT_HERE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One number of a source, and ours.

    Parameters
    ----------
    what
        The quantity, with its setting.
    claimed
        The number of the source.
    ours
        As computed here; ``None`` where it cannot be, and then `why` must say so.
    unit
        Unit of both numbers.
    within
        How far apart they may be and still agree, in that unit: the rounding of the print, or what
        the words "about" and "roughly" leave open.
    relation
        How our number should compare with the claimed one: equal, at most or at least.
    seen
        Where the claimed number comes from, a key of `SEEN`.
    why
        Why ours differs or is missing.
    check
        Why our number says nothing about the source: it could differ only by a fault of this
        program, or is counted already. Then it is a check of ours, and no agreement.

    Examples
    --------
    >>> Claim(what="layers", claimed=100, ours=101, within=2, seen="text").verdict
    'agree'
    >>> Claim(what="overhead", claimed=20, ours=21, relation="at most", seen="text").verdict
    'differ'
    >>> Claim(what="least", claimed=1, ours=1, seen="formula", check="built in").verdict
    'check of ours'
    >>> Claim(what="time", claimed=3, ours=None, seen="text", why="their machine").verdict
    'not reproducible here'
    """

    what: str
    claimed: float
    ours: float | None
    unit: str = ""
    within: float = 0.0
    relation: Relation = "equal"
    seen: Seen
    why: str = ""
    check: str = ""

    def __post_init__(self) -> None:
        if self.seen not in SEEN or self.relation not in get_args(Relation):
            raise ValueError(f"{self.what}: seen {self.seen!r}, relation {self.relation!r}")
        if self.within < 0:
            raise ValueError(f"{self.what}: within {self.within} is negative")
        if self.ours is None and not self.why:
            raise ValueError(f"{self.what}: no number of ours, and no reason why")
        if self.ours is not None and not abs(self.ours) < float("inf"):
            raise ValueError(f"{self.what}: our number is {self.ours}")

    @property
    def verdict(self) -> str:
        """``agree``, ``differ``, ``check of ours`` or ``not reproducible here``."""
        if self.ours is None:
            return NOT_HERE
        slack = self.within * (1 + 1e-9) + 1e-9 * abs(self.claimed)
        too_high = self.relation != "at least" and self.ours > self.claimed + slack
        too_low = self.relation != "at most" and self.ours < self.claimed - slack
        if too_high or too_low:
            return DIFFER
        return CHECK if self.check else AGREE


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What a folder reproduces.

    Attributes
    ----------
    title
        Authors, year and work.
    what
        What is reproduced, in a few words.
    fast
        Whether it takes under about a second; the tests run those.
    """

    title: str
    what: str
    fast: bool = False


@dataclass(frozen=True, slots=True)
class Instances:
    """Graphs and chains that are not ours, in a folder that the user names."""

    folder: Path | None

    def __bool__(self) -> bool:
        return self.folder is not None

    def graph(self, name: str) -> Any:
        """The graph ``dag/NAME.json`` of the folder."""
        import schedsim

        return schedsim.load(self._path("dag", f"{name}.json"))

    def chain(self, name: str) -> Any:
        """The chain ``chain/NAME.json`` of the folder."""
        import schedsim

        return schedsim.load(self._path("chain", f"{name}.json"))

    def read(self, *parts: str) -> str:
        """The text of a file."""
        return self._path(*parts).read_text(encoding="utf-8")

    def _path(self, *parts: str) -> Path:
        assert self.folder is not None, "asked for an instance without a folder"
        return self.folder.joinpath(*parts)


def find_instances(given: str | None) -> Instances:
    """The folder given, or that of the environment variable SCHEDSIM_INSTANCES, or none."""
    name = given or os.environ.get("SCHEDSIM_INSTANCES")
    if not name:
        return Instances(None)
    folder = Path(name)
    if not (folder / "dag").is_dir() or not (folder / "chain").is_dir():
        sys.exit(f"error: {folder} has no folders dag and chain\nhint: see papers/README.md")
    return Instances(folder)


def format_number(value: float | None, unit: str = "") -> str:
    """Four figures, whole numbers whole.

    >>> format_number(12155), format_number(2.7344, "GiB"), format_number(None)
    ('12,155', '2.734 GiB', '-')
    """
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e15:
        text = f"{int(value):,}"
    else:
        text = f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    return f"{text} {unit}".strip()


def claim_rows(claims: Iterable[Claim]) -> list[tuple[str, str, str, str, str]]:
    """What, claimed, ours, verdict, how it was seen."""
    words = {"equal": "", "at most": "at most ", "at least": "at least "}
    return [
        (
            claim.what,
            words[claim.relation] + format_number(claim.claimed, claim.unit),
            format_number(claim.ours, claim.unit),
            claim.verdict,
            claim.seen,
        )
        for claim in claims
    ]


def as_text(claims: list[Claim]) -> str:
    """An aligned table, for a terminal."""
    rows = [("what", "claimed", "ours", "agree?", "seen"), *claim_rows(claims)]
    widths = [max(len(row[k]) for row in rows) for k in range(5)]
    lines = ["  ".join(cell.ljust(widths[k]) for k, cell in enumerate(row)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def as_markdown(claims: list[Claim]) -> str:
    """A table with the reasons below it, for a README."""
    lines = ["| what | claimed | ours | agree? | seen |", "|---|---:|---:|---|---|"]
    notes: dict[str, int] = {}
    for claim, row in zip(claims, claim_rows(claims), strict=True):
        cells = list(row)
        for reason in filter(None, (claim.check, claim.why)):
            number = notes.setdefault(reason, len(notes) + 1)
            cells[3] += f" [{number}]"
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += [""] * bool(notes)
    lines += [f"{number}. {why}" for why, number in notes.items()]
    return "\n".join(lines)


def as_dict(claim: Claim) -> dict[str, Any]:
    """For a file: the fields, and the verdict that follows from them."""
    return asdict(claim) | {"verdict": claim.verdict}


def from_dict(data: dict[str, Any]) -> Claim:
    """What `as_dict` gave; the verdict is computed again."""
    return Claim(**{key: value for key, value in data.items() if key not in ("verdict", "source")})


def draw(folder: Path, figure: Callable[[Figure, Instances], None], instances: Instances) -> None:
    """Write ``figure.svg`` into `folder`; the same bytes whenever the numbers are the same."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    settings = {
        "svg.hashsalt": "papers",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
    }
    with mpl.rc_context(settings):
        page = plt.figure(figsize=(5.6, 3.4), layout="constrained")
        figure(page, instances)
        page.savefig(folder / "figure.svg", metadata={"Date": None})
        plt.close(page)


def published(
    *,
    what: str,
    claimed: float,
    ours: float,
    share: float,
    unit: str = "",
    seen: Seen = "text",
    why: str = "",
) -> Claim:
    """A published number, of which a prediction may be off by a `share`; `why`, if it is more.

    >>> published(what="step", claimed=2.0, ours=2.2, share=0.15, why="not said here").why
    ''
    >>> published(what="step", claimed=2.0, ours=2.4, share=0.15, why="unknown").why
    'unknown'
    """
    return Claim(
        what=what,
        claimed=round(claimed, 2),
        ours=ours,
        unit=unit,
        within=share * claimed,
        seen=seen,
        why=why if abs(ours / claimed - 1) > share else "",
    )


def taken_together(rows: Iterable[tuple[str, float, float]]) -> Iterator[Claim]:
    """Checks of ours, of the rows of a source taken together.

    Parameters
    ----------
    rows
        What it is, the percent that are hoped for, and the share that is ours. All is at least 100
        percent, less is at most so much.
    """
    for what, hoped, share in rows:
        yield Claim(
            what=what,
            claimed=hoped,
            ours=100 * share,
            unit="%",
            relation="at least" if hoped == 100 else "at most",
            seen="formula",
            check="The rows above taken together: what was hoped for, and what no source claims.",
        )


def load_source(folder: Path) -> ModuleType:
    """The ``reproduce.py`` of a folder: its SOURCE, claims and figure."""
    return _load(folder, "reproduce")


def load_runs(folder: Path) -> ModuleType:
    """The ``published_runs.py`` of a folder: the runs that a source published."""
    return _load(folder, "published_runs")


def _load(folder: Path, module_name: str) -> ModuleType:
    name = f"papers_{folder.name.replace('-', '_')}_{module_name}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, folder / f"{module_name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main(
    file: str,
    source: Source,
    claims: Callable[[Instances], Iterator[Claim]],
    figure: Callable[[Figure, Instances], None],
) -> None:
    """The command line of one ``reproduce.py``: print the table, draw the figure."""
    parser = argparse.ArgumentParser(description=f"{source.title}: {source.what}")
    parser.add_argument(
        "--instances",
        metavar="FOLDER",
        help="with dag/*.json and chain/*.json that are not ours (or SCHEDSIM_INSTANCES)",
    )
    parser.add_argument("--no-figure", action="store_true", help="print the table alone")
    options = parser.parse_args()
    instances = find_instances(options.instances)
    print(source.title)
    found = list(claims(instances))
    print(as_text(found))
    for why in dict.fromkeys(claim.why for claim in found if claim.why):
        print(f"- {why}")
    if not instances:
        print("without --instances: what needs them is left out", file=sys.stderr)
    if not options.no_figure:
        draw(Path(file).parent, figure, instances)
