"""The command line as it declares itself, and what a call of it lets one see, planners left out."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import schedsim.algorithms.pipelines.fixed_recomputation

import schedsim
import schedsim.cli.given.made_pipeline
from schedsim.api import try_plan
from schedsim.cli.app import cli, run
from schedsim.files.workload_files import workload_hash
from schedsim.plans.maximize import Maximum, Sized
from schedsim.plans.plan import Plan
from schedsim.plans.source import WorkloadSource
from schedsim.simulation.result import Simulation

CHAIN = schedsim.Chain.from_arrays(
    "four",
    4 << 20,
    forward_s=[1] * 4,
    backward_s=[2] * 4,
    output_bytes=[4 << 20] * 4,
    saved_bytes=[20 << 20] * 4,
)


def commands() -> dict[str, click.Command]:
    """Every command by its words: ``"plot frontier"``."""

    def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from walk(found, (*words, name))
        else:
            yield " ".join(words), command

    return dict(walk(cli, ()))


def options(command: click.Command) -> list[str]:
    """The first name of every option and argument that `command` declares."""
    return [param.opts[0] for param in command.params]


@dataclass(frozen=True)
class Seen:
    """What a call lets one see.

    Attributes
    ----------
    reached
        What reached the planner, the measurement or the drawing, as text.
    files
        File -> content, of those that the call wrote.
    """

    code: int
    out: str
    err: str
    reached: str
    files: tuple[tuple[str, bytes], ...]

    @property
    def refused(self) -> bool:
        """One line of error, one of hint, and the exit code of a usage error."""
        lines = self.err.splitlines()
        return (
            self.code == 2
            and not self.out
            and len(lines) == 2
            and lines[0].startswith("error: ")
            and lines[1].startswith("hint: ")
        )


class Watched:
    """The command line with recorders in the place of planners, models and pictures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.calls: list[str] = []
        self.folder, self.inputs = folder, {path.name for path in folder.iterdir()}
        monkeypatch.chdir(folder)
        put = monkeypatch.setattr
        for where in ("planning.one", "compare", "plot.memory", "validate", "estimate"):
            put(f"schedsim.cli.{where}.try_plan", self._plan)
        put("schedsim.cli.planning.maximum.maximize", self._maximize)
        put("schedsim.cli.plot.curve_pictures.pareto", self._pareto)
        put("schedsim.cli.explain.explain", self._passing(schedsim.explain))
        put("schedsim.sweeps.run_sweep", self._recording("run_sweep", []))
        put("schedsim.figures.report.report", self._recording("report", "<html>"))
        put("schedsim.cli.plot.memory.write_picture", self._picture)
        put("schedsim.cli.plot.curve_pictures.write_picture", self._picture)
        put("schedsim.cli.plot.pipeline_picture.write_picture", self._picture)
        put("schedsim.cli.plot.validation.write_picture", self._picture)
        plan_pipeline = schedsim.cli.given.made_pipeline.plan_pipeline

        def planned(pipeline: Any, options: Any, budget: Any) -> Any:
            self._note("plan", budget, pipeline.free_outputs, pipeline.waits_for_gradient)
            return replace(plan_pipeline(pipeline, options, budget), planning_s=0.0)

        def replayed(*values: Any) -> Any:
            return replace(replay(*values), planning_s=0.0)

        replay = schedsim.algorithms.pipelines.fixed_recomputation.replayed
        put("schedsim.cli.given.made_pipeline.plan_pipeline", planned)
        put("schedsim.algorithms.pipelines.fixed_recomputation.replayed", replayed)
        for name in ("plot.draw_timeline", "gantt.draw_pools", "gantt.draw_gantt"):
            put(f"schedsim.figures.{name}", self._recording(name, name))
        for name in ("plot.draw_schedule", "plot.draw_pareto", "plot_pipeline.draw_pipeline"):
            put(f"schedsim.figures.{name}", self._recording(name, name))
        for name in ("plot.draw_validation", "plot_results.draw_results", "plot_results.draw_best"):
            put(f"schedsim.figures.{name}", self._recording(name, name))
        # What merely repeats the command line would hide that nothing else is done with it.
        put("schedsim.cli.given.workload_source.Source.arguments", lambda source: "WORKLOAD")
        origin = WorkloadSource("file", path="WORKLOAD")
        put("schedsim.cli.given.workload_source.Source.origin", origin)
        self._models(monkeypatch)

    def call(self, arguments: list[str], capsys: Any) -> Seen:
        """Run the command line, and what it lets one see; the files it wrote are removed."""
        self.calls.clear()
        code = run(arguments)
        captured = capsys.readouterr()
        files = []
        for path in sorted(self.folder.iterdir()):
            if path.name not in self.inputs and path.is_file():
                files.append((path.name, path.read_bytes()))
                path.unlink()
        return Seen(code, captured.out, captured.err, "\n".join(self.calls), tuple(files))

    def _note(self, name: str, *values: Any, **named: Any) -> None:
        self.calls.append(f"{name} {text(values)} {text(named)}")

    def _recording(self, name: str, result: Any) -> Any:
        def record(*values: Any, **named: Any) -> Any:
            self._note(name, *values, **named)
            return result

        return record

    def _passing(self, function: Any) -> Any:
        def record(*values: Any, **named: Any) -> Any:
            self._note(function.__name__, *values, **named)
            return function(*values, **named)

        return record

    def _plan(self, workload: Any, budget: Any, planner: Any = None, **more: Any) -> Plan:
        self._note("try_plan", workload, budget, planner, **more)
        return plain_plan(workload, budget)

    def _pareto(self, workload: Any, planner: Any = None, **more: Any) -> Any:
        self._note("pareto", workload, planner, **more)
        return schedsim.pareto(workload, "store_all")

    def _maximize(self, family: Any, budget: int, planner: str, **more: Any) -> Maximum:
        step, work = more["step"], more.pop("work")
        workload, own = family(2 * step)
        self._note("maximize", workload, budget, planner, own, **more)
        one = Sized(2 * step, work(2 * step), plain_plan(workload, budget))
        return Maximum("samples", one, one, None, "limit", "", 2 * step, True, (one,))

    def _picture(self, figure: Any, output: str) -> None:
        self._note("write_picture", figure)
        Path(output).write_text("picture")

    def _models(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Models are neither captured nor run: what is asked of them is recorded."""

        def read_target(name: str, **more: Any) -> Any:
            self._note("read_target", name, **more)
            return ReadTarget(CHAIN, (), None, "target", "captured")

        def plan_target(name: str, budget: Any, **more: Any) -> Any:
            self._note("plan_target", name, budget, **more)
            return Outcome(CHAIN, plain_plan(CHAIN, 10**12), (), ())

        class Report:
            checks = notes = ()
            num_runs = num_recomputed = 1

            def __init__(self) -> None:
                self.predicted = {"peak_bytes": 1, "overhead": 0.0, "by_kind": {}}
                self.measured = {"peak_bytes": 1}

            def to_dict(self) -> dict[str, Any]:
                return {}

        fakes: dict[str, dict[str, Any]] = {
            "targets": {"read_target": read_target},
            "ways.commands": {"plan_target": plan_target},
            "environment": {"resolve_device": self._recording("resolve_device", None)},
            "validate": {"validate": self._recording("validate", Report())},
        }
        for name, content in fakes.items():
            module = ModuleType(f"schedsim.validation.{name}")
            module.__dict__.update(content)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        for where in ("given.loaded", "planning.ways", "profile", "validate"):
            monkeypatch.setattr(f"schedsim.cli.{where}.need_torch", lambda: None)


@dataclass(frozen=True)
class ReadTarget:
    """A model as it is captured."""

    workload: Any
    lines: tuple[str, ...]
    origin: Any
    target: Any
    captured: Any


@dataclass(frozen=True)
class Outcome:
    """A model as it is planned by its ways."""

    workload: Any
    plan: Plan
    lines: tuple[str, ...]
    ways: tuple[Any, ...]


def plain_plan(workload: Any, budget: Any) -> Plan:
    """The store-all plan: the same for whatever is asked."""
    return replace(try_plan(workload, budget, "store_all"), planning_s=0.0)


def text(value: Any) -> str:
    """The content of `value`, without parts that differ from call to call."""
    if isinstance(value, schedsim.Chain | schedsim.Graph):
        kinds = sorted({v.kind for stage in getattr(value, "stages", ()) for v in stage.variants})
        return f"workload {workload_hash(value)} {kinds}"
    if isinstance(value, Simulation):
        return f"simulation {value.peak_bytes} {value.makespan_s} {value.num_runs}"
    if isinstance(value, dict):
        return str({name: text(one) for name, one in value.items() if name != "planning_s"})
    if isinstance(value, list | tuple):
        return str([text(one) for one in value])
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: getattr(value, f.name) for f in fields(value) if f.repr}
        return f"{type(value).__name__} {text(named)}"
    if inspect.isfunction(value) or inspect.ismethod(value):
        return "function"
    return repr(value)
