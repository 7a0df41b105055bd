"""An export target: the schedule as a table that a spreadsheet opens."""

from __future__ import annotations

import csv
import io

from schedsim import Chain, Graph, Plan, Simulation, simulate
from schedsim.export import Choice, Target


class CsvAdapter:
    """Run, op, and whether the op has run before."""

    SUFFIX = ".csv"

    def choose(self, workload: Chain | Graph, plan: Plan) -> tuple[Choice, Simulation]:
        """A table can hold any schedule: the plan's own."""
        assert plan.schedule is not None
        choice = Choice(plan.schedule, f"{len(plan.schedule.names)} runs")
        return choice, simulate(workload, plan.schedule)

    def render(self, workload: Chain | Graph, plan: Plan, choice: Choice, peak_bytes: int) -> str:
        """The rows; names that a spreadsheet would take for formulas stay text."""
        stream, seen = io.StringIO(), set()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["run", "op", "recomputed"])
        for run, name in enumerate(choice.schedule.names):
            text = f"'{name}" if name[:1] in "=+-@" else name
            writer.writerow([run, text, "yes" if name in seen else "no"])
            seen.add(name)
        return stream.getvalue()


CSV = Target("csv", ("chain", "graph"), "any schedule, a row for each op run", CsvAdapter())
