"""The table and the figure of what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .subjects import TITLES

MIB = 2**20
NOISE = 0.02
"""A measured time counts as slower than a peer's if the ratio's lower quartile is above this."""


def write_table(rows: list[dict[str, Any]], path: Path) -> None:
    """Markdown: each peer beside schedsim at its measured peak, then our own budgets."""
    path.write_text("\n".join(_page(rows)) + "\n")


def _page(rows: list[dict[str, Any]]) -> list[str]:
    peers = [
        row for row in rows if "over_peer" in row.get("ours", {}) and "lost" not in row["gradients"]
    ]
    lines = ["# Peers", "", *_about(rows), ""]
    if peers:
        lines += [*_counts(peers), ""]
    for model, title in TITLES.items():
        mine = [row for row in rows if row["model"] == model]
        plain = next((row for row in mine if row["method"] == "plain"), None)
        if plain is None:
            continue
        lines += [
            f"## {title}",
            "",
            f"Plain: peak {_mib(plain['peak_bytes'])} MiB, {_mib(plain['resident_bytes'])} of it "
            f"resident, {plain['flops'] / 1e9:.1f} GFLOP.",
            "",
            "| method | setting | its peak, MiB | its FLOPs | its time | gradients "
            "| our peak, MiB | our FLOPs | our time | ours / its | by FLOPs: FLOPs, time |",
            "|---|---|---:|---:|---:|---|---:|---:|---:|---:|---:|",
        ]
        lines += [_peer(row) for row in mine if row["method"] not in ("plain", "schedsim")]
        sweep = [row for row in mine if row["method"] == "schedsim"]
        if sweep:
            lines += [
                "",
                "| schedsim at, of the step's own bytes | peak, MiB | FLOPs | time | gradients "
                "| predicted time | over optimal, at most | planned in | by FLOPs: FLOPs, time |",
                "|---|---:|---:|---:|---|---:|---:|---:|---:|",
                *(_budget(row) for row in sweep),
            ]
        lines.append("")
    return lines


def _counts(peers: list[dict[str, Any]]) -> list[str]:
    """The results of each of the two plans, counted apart: no row credits both."""

    def slower(plans: list[dict[str, Any]]) -> int:
        return sum(one["over_peer"]["low"] > 1 + NOISE for one in plans)

    def more(key: str) -> int:
        return sum(r[key].get("extra_flops", 9.0) > r["extra_flops"] + 1e-9 for r in peers)

    timed = [r["by_operations"] for r in peers if "over_peer" in r["by_operations"]]
    lines = [
        f"At {len(peers)} measured settings of peers, at the same measured peak: the plan by",
        f"measured times is slower in {slower([r['ours'] for r in peers])} (lower quartile of the "
        f"ratio above {1 + NOISE:g}), and recomputes more operations in {more('ours')}.",
        "Another plan, by operations, recomputes more of them than the peer in "
        f"{more('by_operations')};",
    ]
    if timed:
        lines.append(f"it was timed at {len(timed)} of them, and is slower in {slower(timed)}.")
    else:
        lines.append("it was not timed.")
    return lines


def _about(rows: list[dict[str, Any]]) -> list[str]:
    plain = next((row for row in rows if row["method"] == "plain"), {})
    loads = [row["load"] for row in rows if "load" in row]
    found = sorted({row["rounds"] for row in rows if "rounds" in row})
    rounds = " to ".join(map(str, dict.fromkeys([*found[:1], *found[-1:]])))
    where = (
        f"{plain.get('device', '?')}, torch {plain.get('torch', '?')}, "
        f"{plain.get('threads', '?')} thread, {rounds} rounds, "
        f"{plain.get('day', '?')}"
    )
    return [
        "Made by `python benchmarks/peers.py`. Peaks: the CPU allocator's own record, kernels'",
        "scratch included, what is resident on top. FLOPs: counted exactly, beyond the plain ones.",
        "*By FLOPs* is another plan, for the fewest operations within the same peak.",
        "Times: processor time on one thread over the plain model's, medians of ratios within",
        "rounds of interleaved steps (plain, peer, ours): other work on the machine is left out,",
        "but it shares caches and memory, so that a few percent are noise. *helped*: ckptplan and",
        "torch's SAC ILP measure with CUDA alone; bytes of blocks and times of ops were measured",
        "here and given to them. Compiled dropout draws other numbers than the plain model's: its",
        "gradients are others. A setting that loses gradients is no peer, and is not counted.",
        *_longer(rows),
        f"{where}" + (f", load {min(loads):.1f} to {max(loads):.1f}." if loads else "."),
    ]


def _longer(rows: list[dict[str, Any]]) -> list[str]:
    """Searches that got more than the default: the machine was busy, and their own gap said so."""
    count = sum(row.get("ours", {}).get("planning_s", 0.0) > 4 for row in rows)
    if not count:
        return []
    return [
        "A search gets 2 s; where its plan's own bound was far off on the busy machine it was run",
        f"again with `--time-limit 10`, and took more than 2 s at {count} setting(s).",
    ]


def _mib(size: float) -> str:
    return f"{size / MIB:.1f}"


def _peer(row: dict[str, Any]) -> str:
    setting = row["setting"].replace("bytes given", "helped").replace("times given", "helped")
    if "over_plain" not in row:
        reason = row.get("reason", "").replace("|", "/")
        return f"| {row['method']} | {setting} | {row['status']}: {reason} | | | | | | | | |"
    cells = [
        row["method"],
        setting,
        _mib(row["peak_bytes"]),
        f"{row['extra_flops']:+.1%}",
        f"{row['over_plain']['median']:.2f}",
        row["gradients"],
    ]
    ours = row.get("ours", {})
    if "over_peer" in ours:
        cells += [
            _mib(ours["peak_bytes"]),
            f"{ours['extra_flops']:+.1%}",
            f"{ours['over_plain']['median']:.2f}",
            f"{ours['over_peer']['median']:.2f}",
            _fewest(row),
        ]
    else:
        cells += [ours.get("status", "-"), "", "", "", _fewest(row)]
    return f"| {' | '.join(cells)} |"


def _fewest(row: dict[str, Any]) -> str:
    fewest = row.get("by_operations", {})
    if "extra_flops" not in fewest:
        return "-"
    time = f", {fewest['over_plain']['median']:.2f}" if "over_plain" in fewest else ""
    return f"{fewest['extra_flops']:+.1%}{time}"


def _budget(row: dict[str, Any]) -> str:
    if "over_plain" not in row:
        return f"| {row['setting']} | {row['status']} | | | | | | | |"
    cells = [
        row["setting"],
        _mib(row["peak_bytes"]),
        f"{row['extra_flops']:+.1%}",
        f"{row['over_plain']['median']:.2f}",
        row["gradients"],
        f"{row['predicted_overhead']:+.1%}",
        f"{row['gap']:.1%}" if row.get("gap") is not None else "-",
        f"{row['planning_s']:.1f} s",
        _fewest(row),
    ]
    return f"| {' | '.join(cells)} |"


def write_figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Peak against time: every peer's points, and our frontier."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in TITLES if any(row["model"] == name for row in rows)]
    if not names:
        return
    columns = min(3, len(names))
    height = -(-len(names) // columns)
    chart = Figure(figsize=(4.2 * columns, 3.4 * height + 0.6), layout="constrained")
    FigureCanvasAgg(chart)
    methods = list(
        dict.fromkeys(
            row["method"]
            for row in rows
            if "over_plain" in row and row["method"] not in ("plain", "schedsim")
        )
    )
    marks = dict(zip(methods, "osvD^P*Xh<>", strict=False))
    handles: dict[str, Any] = {}
    for number, name in enumerate(names):
        axes = chart.add_subplot(height, columns, number + 1)
        mine = [row for row in rows if row["model"] == name]
        for method, mark in marks.items():
            points = [
                r
                for r in mine
                if r["method"] == method and "over_plain" in r and "lost" not in r["gradients"]
            ]
            if points:
                handles[method] = axes.scatter(
                    [r["peak_bytes"] / MIB for r in points],
                    [r["over_plain"]["median"] for r in points],
                    marker=mark,
                    color=f"C{methods.index(method)}",
                    s=22,
                    alpha=0.8,
                )
        ours = [r for r in mine if r["method"] == "schedsim" and "over_plain" in r]
        ours += [r["ours"] for r in mine if "over_peer" in r.get("ours", {})]
        ours.sort(key=lambda r: r["peak_bytes"])
        front, best = [], float("inf")
        for r in ours:
            if r["over_plain"]["median"] < best:
                best = r["over_plain"]["median"]
                front.append((r["peak_bytes"] / MIB, best))
        axes.scatter(
            [r["peak_bytes"] / MIB for r in ours],
            [r["over_plain"]["median"] for r in ours],
            color="black",
            s=6,
        )
        if front:
            [handles["schedsim"]] = axes.plot(
                *zip(*front, strict=True), "k.-", linewidth=1.2, markersize=4
            )
        plain = next(r for r in mine if r["method"] == "plain")
        handles["plain"] = axes.scatter(
            [plain["peak_bytes"] / MIB], [1.0], marker="s", color="black", s=22
        )
        axes.set_title(TITLES[name], fontsize=10)
        axes.grid(alpha=0.3)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if number % columns == 0:
            axes.set_ylabel("step time over plain")
        if number >= len(names) - columns:
            axes.set_xlabel("measured peak, MiB")
    chart.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    chart.savefig(path)
