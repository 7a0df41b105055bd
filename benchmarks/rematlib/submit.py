"""Whether a certificate is better than what RematLib knows, and with ``--accept`` keeps it.

    python benchmarks/rematlib/submit.py CERTIFICATE.json [--by NAME] [--accept]

A certificate counts where `check.py` finds nothing wrong with it, and its schedule is faster or its
bound higher than the best known of its instance at its budget. For a chain the library keeps two:
the best persistent schedule, and beside it, if one is known, one that is faster than all
persistent ones. Like `check.py`, this script needs only the standard library.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import check

HERE = Path(__file__).resolve().parent


def find(root: Path, certificate: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The row of the index, and the place of the certificate's budget among its budgets."""
    rows = check.read(root / "index.json")["instances"]
    wanted = certificate["instance"]["content_hash"]
    for row in rows:
        if row["content_hash"] == wanted:
            budgets = list(dict.fromkeys([row["least_bytes"], *row["budgets_bytes"]]))
            budget = certificate["budget_bytes"]
            check.require(
                budget in budgets, f"{row['name']} has the budgets {budgets}, no {budget}"
            )
            return row, budgets.index(budget)
    raise check.Rejected("no instance of the library has this content hash")


def is_beyond(known: dict[str, Any], given: dict[str, Any]) -> bool:
    """Whether `given` is faster than what a bound over persistent schedules allows these.

    Then it is none of them, and is kept beside `known`, which is the best of them.
    """
    bound = known["bound"]
    if bound is None or bound["scope"] != check.PERSISTENT or given["schedule"] is None:
        return False
    return Fraction(given["makespan_s"]) < Fraction(bound["bound_s"])


def rival(document: dict[str, Any], place: int, given: dict[str, Any]) -> dict[str, Any]:
    """The certificate among those of an instance with which `given` is compared."""
    known: dict[str, Any] = document["certificates"][place]
    if is_beyond(known, given):
        for one in document.get("any_schedule", []):
            if one["budget_bytes"] == given["budget_bytes"]:
                return dict(one)
        return {**known, "bound": None}  # a bound over persistent schedules says nothing of it
    return known


def keep(document: dict[str, Any], place: int, best: dict[str, Any]) -> None:
    """Put a certificate among those of an instance, in the order of its budgets."""
    if not is_beyond(document["certificates"][place], best):
        document["certificates"][place] = best
        return
    budgets = [one["budget_bytes"] for one in document["certificates"]]
    by_budget = {one["budget_bytes"]: one for one in document.get("any_schedule", [])}
    by_budget[best["budget_bytes"]] = best
    document["any_schedule"] = sorted(
        by_budget.values(), key=lambda one: budgets.index(one["budget_bytes"])
    )


def summaries(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the index for an instance, one a budget."""
    faster = {one["budget_bytes"]: summary(one) for one in document.get("any_schedule", [])}
    return [
        summary(one)
        | ({"any_schedule": faster[at]} if (at := one["budget_bytes"]) in faster else {})
        for one in document["certificates"]
    ]


def news_of(known: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """The respects in which `given` is better; both are taken for proven."""
    news = []
    if given["schedule"] is not None:
        new = Fraction(given["makespan_s"])
        if known["schedule"] is None:
            news.append(f"the first schedule: {new} s")
        elif new < Fraction(known["makespan_s"]):
            news.append(f"faster: {new} s after {known['makespan_s']} s")
    if given["bound"] is not None:
        new, scope = Fraction(given["bound"]["bound_s"]), given["bound"]["scope"]
        if known["bound"] is None:
            news.append(f"the first bound: {new} s over {scope}")
        else:
            old, within = Fraction(known["bound"]["bound_s"]), known["bound"]["scope"]
            # A bound over any schedule holds over every class.
            if new > old and scope in (within, check.ANY):
                news.append(f"a higher bound: {new} s after {old} s")
    return news


def joined(known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The faster schedule of the two with the higher bound."""
    first, second = known, given
    if known["schedule"] is None or (
        given["schedule"] is not None
        and Fraction(given["makespan_s"]) < Fraction(known["makespan_s"])
    ):
        first, second = given, known
    bounds = [one["bound"] for one in (first, second) if one["bound"] is not None]
    if not bounds or first["schedule"] is None:
        return dict(first)
    best = max(bounds, key=lambda bound: Fraction(bound["bound_s"]))
    bound_s = Fraction(best["bound_s"])
    gap = Fraction(first["makespan_s"]) / bound_s - 1 if bound_s else Fraction(0)
    optimal = gap <= Fraction(1, 10**9)
    status = "optimal" if optimal else "feasible"
    return {**first, "bound": best, "gap": str(gap), "optimal": optimal, "status": status}


def summary(certificate: dict[str, Any]) -> dict[str, Any]:
    """The entry of the index for a certificate."""
    bound = certificate["bound"]
    return {
        "budget_bytes": certificate["budget_bytes"],
        "makespan_s": certificate["makespan_s"],
        "bound_s": bound and bound["bound_s"],
        "scope": bound and bound["scope"],
        "status": certificate["status"],
    }


def write_json(path: Path, document: Any) -> None:
    """Compact JSON, compressed: the same bytes for the same content and version of zlib."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, separators=(",", ":")) + "\n"
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def write_index(root: Path, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """A row a line, so that differences are read."""
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    parts = [f' "{key}": ' + json.dumps(head[key], indent=1).replace("\n", "\n ") for key in head]
    text = "{\n" + ",\n".join([*parts, ' "instances": [\n' + lines + "\n ]"]) + "\n}\n"
    (root / "index.json").write_text(text)


def accept(root: Path, given: dict[str, Any], by: str) -> None:
    """Put a certificate that `news_of` finds better in the library."""
    row, place = find(root, given)
    path = root / "solutions" / f"{row['name']}.json.gz"
    document = check.read(path)
    kept = {key: value for key, value in given.items() if key != "workload"}
    kept["status"] = "optimal" if given["optimal"] else "feasible"
    kept["found"] = {"by": by, "date": datetime.date.today().isoformat()}
    best = joined(rival(document, place, kept), kept)
    check.verify(check.Instance(check.read(root / row["file"])), best)
    keep(document, place, best)
    write_json(path, document)
    whole = check.read(root / "index.json")
    rows = whole.pop("instances")
    for one in rows:
        if one["name"] == row["name"]:
            one["best"] = summaries(document)
    write_index(root, whole, rows)


def main(arguments: list[str], root: Path = HERE) -> int:
    """Exit code 0: it is news; 1: it is right and no news, or wrong; 2: the file is unreadable."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("certificate", type=Path)
    parser.add_argument("--by", default="a reader", help="who found it")
    parser.add_argument("--accept", action="store_true", help="keep it in the library")
    given = parser.parse_args(arguments)
    try:
        certificate = check.read(given.certificate)
        row, place = find(root, certificate)
        check.verify(check.Instance(check.read(root / row["file"])), certificate)
    except (OSError, ValueError) as error:
        print(f"error: {given.certificate}: {error}", file=sys.stderr)
        return 2
    except (check.Rejected, KeyError, TypeError) as error:
        print(f"REJECTED: {error}")
        return 1
    document = check.read(root / "solutions" / f"{row['name']}.json.gz")
    known = rival(document, place, certificate)
    news = news_of(known, certificate)
    print(f"{row['name']} at {known['budget_bytes']} bytes: {'; '.join(news) or 'no news'}")
    if news and given.accept:
        accept(root, certificate, given.by)
        print("kept")
    return 0 if news else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
