"""The page of a campaign: tables and figures from the files of results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# Colours that are safe for colour-blind readers (Okabe and Ito), each with a marker.
STYLES = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("#000000", "X"),
    ("#999999", "*"),
    ("#F0E442", "h"),
    ("#7F3C8D", "<"),
)


def write_page(folder: Path) -> None:
    """Write ``README.md`` and the figures for all ``*.jsonl`` in `folder`."""
    parts = [
        "# Real models: predicted and measured",
        "Written by `python validation/run_campaign.py`; the rows are in the `.jsonl` files. "
        "A plan is made for a budget, simulated, and its step is run on the real model.",
    ]
    for file in sorted(folder.glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        if rows:
            parts += _section(folder, file.stem, rows)
    (folder / "README.md").write_text("\n\n".join(parts) + "\n")


def _section(folder: Path, device: str, rows: Sequence[Row]) -> list[str]:
    facts = rows[0]["environment"]
    models = [row for row in rows if row["kind"] == "model"]
    plans = [row for row in rows if row["kind"] == "plan"]
    run = [row for row in plans if "peak_bytes" in row]
    failures = [row for row in rows if row["kind"] == "failure"]
    draw_scatter(run, folder / f"{device}-peak.svg", "peak")
    draw_scatter(run, folder / f"{device}-overhead.svg", "overhead")
    draw_frontiers(models, plans, folder / f"{device}-frontier.svg")
    named = {"device_name": "device", "torch": "torch", "threads": "threads", "python": "python"}
    lines = [f"## {facts['device_name']}"]
    lines.append(", ".join(f"{label} {facts[key]}" for key, label in named.items()) + ".")
    lines.append(_summary(run, plans))
    lines.append(_models_table(models, run))
    lines.append(
        "Peaks count everything on the device; *activations* are peaks less what is always "
        "resident (parameters, gradients, buffers). *Plain* is the model without schedsim. "
        "Overheads are over the store-all schedule, medians of steps beside one of its own. "
        "A weight that blocks share (LSTM) gets its gradients block by block, where autograd adds "
        "them up first: equal up to rounding. Tolerances are in `validate.py`."
    )
    lines.append("### What people repeat")
    lines.append(_folklore_table(models, run))
    lines.append("### The best plan at each budget")
    lines.append(_budget_table(models, plans))
    lines.append("### Figures")
    for name, text in (
        ("peak", "Measured peak against predicted, every schedule run."),
        ("overhead", "Measured time against predicted; bars span half of the rounds."),
        ("frontier", "The exact curve as predicted (steps), and its plans as measured (points)."),
    ):
        lines.append(f"{text}\n\n![{text}]({device}-{name}.svg)")
    if failures:
        lines.append("### Not run")
        lines.append("\n".join(f"- {row['model']}: {row['says']}" for row in failures))
    return lines


def _distinct(rows: Iterable[Row]) -> list[Row]:
    """One row for each model and schedule."""
    return list({(row["model"], row["level"], row["schedule"]): row for row in rows}.values())


def _gap(row: Row) -> float:
    return float(row["peak_bytes"] / row["predicted_peak_bytes"] - 1.0)


def _summary(run: Sequence[Row], plans: Sequence[Row]) -> str:
    distinct = _distinct(run)
    gaps = [_gap(row) for row in distinct]
    timed = [row for row in distinct if "overhead" in row]
    points = sorted(abs(row["overhead"] - row["predicted_overhead"]) for row in timed)
    exact = sum("NOT" not in row.get("as_plain", "NOT") for row in distinct)
    bits = sum(row.get("as_plain", "").startswith("equal") for row in distinct)
    others = [row for row in distinct if "as_store_all" in row]
    again = sum(row["as_store_all"].startswith("equal") for row in others)
    budgets = [row for row in plans if "budget_holds" in row]
    memory = sum("out_of_memory" in row for row in plans)
    lines = [
        f"- {len(plans)} rows, {len(distinct)} distinct schedules run on the models.",
        f"- Peak: {sum(row['peak_holds'] for row in distinct)} of {len(distinct)} within the "
        f"tolerance; measured {min(gaps):+.3%} to {max(gaps):+.3%} of predicted.",
        f"- Budget kept in {sum(row['budget_holds'] for row in budgets)} of {len(budgets)} plans.",
        f"- Loss, gradients and buffers equal to the plain model's to the bit in {bits} of "
        f"{len(distinct)}, within rounding in {exact}; to store-all's to the bit in {again} of "
        f"{len(others)}.",
        f"- Ops counted as scheduled in {sum(row['runs_hold'] for row in distinct)} of "
        f"{len(distinct)}.",
    ]
    if points:
        lines.append(
            f"- Overhead: {sum(row.get('overhead_holds', False) for row in timed)} of {len(timed)} "
            f"within the tolerance; median difference {100 * points[len(points) // 2]:.1f} points, "
            f"largest {100 * points[-1]:.1f}."
        )
    if memory:
        lines.append(f"- {memory} rows ran out of memory.")
    return "\n".join(lines)


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headers) + " |", "|---" + "|---:" * (len(headers) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def _mb(size: int | None) -> str:
    if size is None:
        return "out of memory"
    return f"{size / 1e9:,.2f} GB" if size >= 1e10 else f"{size / 1e6:,.1f} MB"


def _models_table(models: Sequence[Row], run: Sequence[Row]) -> str:
    rows = []
    for model in models:
        own = _distinct(row for row in run if row["model"] == model["model"])
        gaps = [_gap(row) for row in own]
        plain, everything = model["plain"], model["store_all"]
        step = plain.get("step_s", {}).get("median_s")
        rows.append(
            (
                f"{model['model']}",
                f"{model['num_parameters'] / 1e6:,.1f} M",
                _mb(model["static_bytes"]),
                _mb(plain.get("peak_bytes")),
                _mb(everything.get("peak_bytes")),
                f"{1000 * step:,.0f} ms" if step else "-",
                str(len(own)),
                f"{min(gaps):+.3%} to {max(gaps):+.3%}" if gaps else "-",
            )
        )
    headers = ("model", "parameters", "static", "plain peak", "store-all peak", "plain step")
    return _table((*headers, "schedules", "measured peak of predicted"), rows)


def _folklore_table(models: Sequence[Row], run: Sequence[Row]) -> str:
    rows = []
    for model in models:
        everything = model["store_all"].get("peak_bytes")
        for row in run:
            if row["model"] != model["model"] or row["budget_bytes"] is not None:
                continue
            if row["planner"] == "random" or everything is None:
                continue
            own = everything - model["static_bytes"]
            saved = everything - row["peak_bytes"]
            over, said = row.get("overhead"), row["predicted_overhead"]
            rows.append(
                (
                    f"{model['model']}: {row['planner']}",
                    _mb(row["peak_bytes"]),
                    f"{saved / everything:.1%}",
                    f"{saved / own:.1%}",
                    f"{said:+.1%}",
                    f"{over:+.1%}" if over is not None else "-",
                )
            )
    headers = ("what", "peak", "less memory", "less activations", "time, predicted")
    return _table((*headers, "time, measured"), rows)


def _budget_table(models: Sequence[Row], plans: Sequence[Row]) -> str:
    rows = []
    for model in models:
        for row in plans:
            best = row["planner"] == "frontier" and row["model"] == model["model"]
            if not best or "predicted_peak_bytes" not in row:
                continue
            over = row.get("overhead")
            rows.append(
                (
                    model["model"],
                    _mb(row["budget_bytes"]),
                    _mb(row["predicted_peak_bytes"]),
                    _mb(row["peak_bytes"]),
                    f"{row['predicted_overhead']:+.1%}",
                    f"{over:+.1%}" if over is not None else "-",
                    f"{row['num_recomputed']} of {row['num_runs']}",
                )
            )
    headers = ("model", "budget", "peak, predicted", "peak, measured", "time, predicted")
    return _table((*headers, "time, measured", "recomputed"), rows)


# Figures


def _saved(figure: Any, path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "schedsim"}):
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def draw_scatter(run: Sequence[Row], path: Path, what: str) -> None:
    """Plot measured against predicted ``"peak"`` or ``"overhead"``, a colour for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8))
    axes = figure.subplots()
    names = list(dict.fromkeys(row["model"] for row in run))
    for name, (colour, marker) in zip(names, STYLES, strict=False):
        own = [row for row in _distinct(run) if row["model"] == name]
        if what == "peak":
            x = [row["predicted_peak_bytes"] / 1e6 for row in own]
            y = [row["peak_bytes"] / 1e6 for row in own]
            axes.plot(x, y, marker, color=colour, markersize=4, label=name)
            continue
        own = [row for row in own if "overhead" in row]
        x = [1 + row["predicted_overhead"] for row in own]
        y = [1 + row["overhead"] for row in own]
        below = [row["overhead"] - row["overhead_low"] for row in own]
        above = [row["overhead_high"] - row["overhead"] for row in own]
        axes.errorbar(
            x,
            y,
            [below, above],
            fmt=marker,
            color=colour,
            markersize=4,
            elinewidth=0.7,
            label=name,
        )
    axes.axline((1, 1), (2, 2), color="black", linewidth=0.7, zorder=0)
    if what == "peak":
        axes.set(xscale="log", yscale="log")
        axes.set(xlabel="predicted peak [MB]", ylabel="measured peak [MB]")
    else:
        # Times over store-all, not overheads, because a logarithmic scale has no zero.
        axes.set(xscale="log", yscale="log")
        ticks = [1, 1.2, 1.5, 2, 3, 5, 10]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        axes.minorticks_off()
        axes.set(xlabel="predicted time over store-all", ylabel="measured time over store-all")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    _saved(figure, path)


def draw_frontiers(models: Sequence[Row], plans: Sequence[Row], path: Path) -> None:
    """Plot, for each model, the predicted curve and its measured plans."""
    from matplotlib.figure import Figure

    shown = [model for model in models if model["curve"]]
    if not shown:
        return
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.1 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    for axes, model in zip(grid.flat, shown, strict=False):
        x = [size / 1e6 for size, _ in model["curve"]]
        y = [100 * over for _, over in model["curve"]]
        axes.step(x, y, where="post", color="#0072B2", label="predicted")
        own = [
            row
            for row in plans
            if row["model"] == model["model"] and row["planner"] == "frontier" and "overhead" in row
        ]
        axes.plot(
            [row["peak_bytes"] / 1e6 for row in own],
            [100 * row["overhead"] for row in own],
            "s",
            color="#D55E00",
            markersize=4,
            label="measured",
        )
        axes.set_title(model["model"], fontsize=9)
        axes.set(xlabel="peak [MB]", ylabel="time over store-all [%]")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7)
    _saved(figure, path)
