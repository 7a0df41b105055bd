"""What commands take: workloads from files or options, sizes, output files."""

from __future__ import annotations

import functools
import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import (
    InfeasibleBudgetError,
    InvalidScheduleError,
    MissingDependencyError,
    SchedsimError,
)
from ..plans.budgets import check_budget, is_share, parse_share, read_budget
from ..units import UnitError, format_bytes, parse_bytes
from ..workloads.given import is_target
from ..workloads.named import is_named, named_workload
from . import complete
from .complete import OF_OPTIONS
from .dry import on_device

if TYPE_CHECKING:
    from ..dataflow.chain import Chain
    from ..dataflow.graph import Graph
    from ..plans.plan import Plan
    from ..plans.setting import StepChanges
    from ..plans.source import WorkloadSource
    from ..simulation.schedule import Schedule
    from ..workloads import WorkloadOptions


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """A size in bytes, or one of some words."""

    name = "size"

    def __init__(self, *words: str) -> None:
        self.words = words

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Bytes, or the word itself."""
        if isinstance(value, int) or value in self.words:
            return value  # type: ignore[no-any-return]
        try:
            return parse_bytes(value)
        except UnitError as error:
            where = f"{param.opts[0]} " if param else ""
            raise UnitError(f"{where}{error.message}", hint=error.hint) from None


class BudgetType(SizeType):
    """A size in bytes, or a share of the store-all peak as it was written: ``"60%"``."""

    name = "budget"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Bytes, or the share, checked."""
        if not isinstance(value, str) or not is_share(value):
            return super().convert(value, param, ctx)
        try:
            return check_budget(value.strip())
        except UnitError as error:
            where = f"{param.opts[0]} " if param else ""
            raise UnitError(f"{where}{error.message}", hint=error.hint) from None


class GapType(click.ParamType):  # type: ignore[type-arg]
    """A gap to a bound: ``0.01``, or ``1%``."""

    name = "gap"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The share of the bound, at most 1."""
        text, where = str(value), param.opts[0] if param else "gap"
        if is_share(text):
            return float(parse_share(text))
        try:
            gap = float(text)
        except ValueError:
            gap = math.nan
        if gap > 1 and math.isfinite(gap):
            raise SchedsimError(
                f"{where} {text} is {gap:.0%} of the bound", hint=f"{where} {text}% is {text} %"
            )
        if not 0 <= gap <= 1:
            raise SchedsimError(
                f"{where} {text} is not at least 0", hint="a gap is a number like 0.01, or 1%"
            )
        return gap


def size_text(size: int) -> str:
    """`size` as an argument that gives exactly it: ``8GB``, ``24GiB``, else plain bytes."""
    for exponent, name in ((3, "GB"), (2, "MB")):
        for base, unit in ((1000, name), (1024, name.replace("B", "iB"))):
            if size and size % base**exponent == 0:
                return f"{size // base**exponent}{unit}"
    return str(size)


# (flag, field of WorkloadOptions, type, help)
_OPTIONS: tuple[tuple[str, str, Any, str], ...] = (
    ("--preset", "preset", str, "Model: gpt2, gpt2-xl, gpt3-175b, llama2-7b, vit-b16, ..."),
    ("--layers", "layers", int, "Number of layers; alone, layers of gpt3-175b."),
    ("--hidden", "hidden", int, "Width h."),
    ("--heads", "heads", int, "Number of attention heads."),
    ("--seq", "seq", int, "Sequence length in tokens."),
    ("--batch", "batch", int, "Micro-batch."),
    ("--dtype", "dtype", str, "Activations in fp16, bf16 or fp32."),
    ("--attention", "attention", str, "eager, flash or selective."),
    ("--granularity", "granularity", str, "layer (default), block or op."),
    ("--tensor-parallel", "tensor_parallel", int, "Tensor-parallel degree."),
    ("--data-parallel", "data_parallel", int, "Data-parallel degree, for --zero."),
    ("--zero", "zero_stage", int, "ZeRO stage 0 to 3."),
    ("--optimizer", "optimizer", str, "For --static auto: adam-mixed, adam (fp32 models), sgd."),
    ("--device", "device", str, "Device whose peaks set the times; a100-80gb by default."),
    ("--efficiency", "efficiency", float, "Share of the device's peaks reached; 1 by default."),
    ("--times", "times_path", str, "File with measured times."),
    ("--synthetic", "synthetic", str, "uniform, alternating, u-shaped, one-huge, heavy-tailed."),
    ("--seed", "seed", int, "Seed of a synthetic chain."),
)
_FLAGS = (
    ("--sequence-parallel", "sequence_parallel", "Split over the sequence what t does not."),
    ("--head", "head", "Add embedding and head to bare layers."),
)


def workload_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the file arguments and the formula options; the command gets a `Source`."""

    @functools.wraps(function)
    def command(files: tuple[str, ...], **given: Any) -> Any:
        output, inputs = given.get("output"), [*files, given["times_path"]]
        if output and Path(output).resolve() in [Path(name).resolve() for name in inputs if name]:
            raise SchedsimError(f"-o {output} would overwrite an input", hint="name another file")
        options = {name: given.pop(name) for name in _flags()}
        return function(Source(files, options, given.pop("level")), **given)

    for flag, field, help_text in reversed(_FLAGS):
        command = click.option(flag, field, is_flag=True, help=help_text)(command)
    command = click.option(
        "--static",
        type=SizeType("auto"),
        help="Model state: auto, or a size; none is counted by default.",
    )(command)
    command = click.option(
        "--level", shell_complete=OF_OPTIONS["level"], help="Of a model: block (default) or op."
    )(command)
    for flag, field, kind, help_text in reversed(_OPTIONS):
        completed = OF_OPTIONS.get(field)
        command = click.option(flag, field, type=kind, help=help_text, shell_complete=completed)(
            command
        )
    return click.argument("files", nargs=-1, metavar="[WORKLOAD]", shell_complete=complete.files)(
        command
    )


def _flags() -> dict[str, str]:
    """Field of `WorkloadOptions` -> its option."""
    flags = {field: flag for flag, field, _, _ in _OPTIONS} | {"static": "--static"}
    return flags | {field: flag for flag, field, _ in _FLAGS}


def no_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """All formula options as the command line has them where only those in `given` are."""
    absent = dict.fromkeys(_flags())
    return {**absent, **{field: False for _, field, _ in _FLAGS}, **given}


@dataclass(frozen=True)
class Source:
    """Where a workload comes from: files, or the options of a formula."""

    files: tuple[str, ...]
    options: dict[str, Any]
    level: str | None = None
    allow: tuple[str, ...] = ()

    @property
    def given(self) -> dict[str, Any]:
        """The formula options that were given."""
        return {k: v for k, v in self.options.items() if v is not None and v is not False}

    def given_flags(self) -> dict[str, Any]:
        """Flag -> value of everything that was given besides files."""
        flags = _flags()
        given = {flags[field]: value for field, value in self.given.items()}
        return given | ({"--level": self.level} if self.level else {})

    @property
    def origin(self) -> WorkloadSource:
        """Where the workload comes from, as a plan file remembers it."""
        from ..plans.source import WorkloadSource

        if self.is_model:
            target = next(name for name in self.files if is_target(name))
            given = {"level": self.level, "device": self.options["device"]}
            options = {name: value for name, value in given.items() if value is not None}
            return WorkloadSource("model", options, target=target)
        if self.given:
            return WorkloadSource("formula", self.given)
        return WorkloadSource("file", path=self.files[0])

    @property
    def is_model(self) -> bool:
        """Whether the workload is a real model, of which ``--device`` says where it runs."""
        return any(is_target(name) for name in self.files)

    def formula(self) -> WorkloadOptions | None:
        """The formula; ``None`` for a workload from a file or a model."""
        from ..workloads import WorkloadOptions

        if self.is_model:
            other = [name for name in self.given if name != "device"]
            if other:
                raise SchedsimError(
                    f"both a model and {_flags()[other[0]]} are given",
                    hint="a model takes its options after commas: model:resnet50,batch=4",
                )
            return None
        return WorkloadOptions(**self.options, allow=self.allow) if self.given else None

    def arguments(self) -> str:
        """The arguments that give this workload again, for a shell."""
        words, flags = list(self.files[:1]), _flags()
        words += ["--level", self.level] if self.level else []
        for field, value in self.given.items():
            text = size_text(value) if field == "static" and value != "auto" else str(value)
            words += [flags[field]] if value is True else [flags[field], text]
        return shlex.join(words)

    def read(self, *, plan: bool = False, movable: bool = False, check: bool = True) -> Loaded:
        """The workload, its assumptions, and the plan among the files where one is allowed.

        `movable`: for a plan with a link, as of a plan among the files that has one. `check`:
        refuse a plan that says another peak or time than its schedule gives.
        """
        from ..plans.claims import check_claims
        from ..plans.plan import Plan

        workload: Chain | Graph | None = None
        found: Plan | None = None
        lines: tuple[str, ...] = ()
        origin: StepChanges | None = None
        if self.level and not self.is_model:
            raise SchedsimError(
                f"--level {self.level} is of a model", hint="a formula takes --granularity"
            )
        # Plans first: they know their workload, and a model is captured as they count it.
        items = {name: _load(name) for name in self.files if not is_target(name)}
        alone = remembered(self, items)
        if alone is not None:
            again = replace(alone, allow=self.allow)
            return again.read(plan=plan, movable=movable, check=check)
        movable |= any(isinstance(item, Plan) and has_link(item) for item in items.values())
        for name in self.files:
            if is_target(name) and workload is None:
                on_device(self.options["device"])
                need_torch()
                from ..validation.targets import read_target

                where = self.options["device"]
                built = read_target(name, level=self.level, device=where, movable=movable)
                workload, lines, origin = built.workload, built.lines, built.origin
                continue
            item = items[name]
            if isinstance(item, Plan):
                if not plan:
                    raise SchedsimError(
                        f"{name} is a plan, not a workload", hint="give a chain or a graph"
                    )
                if found is not None:
                    raise SchedsimError(f"{name} is a second plan", hint="give one at a time")
                found = item
            elif workload is not None:
                raise SchedsimError(f"{name} is a second workload", hint="give one at a time")
            else:
                workload, lines = item, (_describe(item, name),)
        options = self.formula()
        if options is not None:
            from ..workloads import build_workload

            if workload is not None:
                flag = _flags()[next(iter(self.given))]
                raise SchedsimError(
                    f"both a workload file and {flag} are given", hint="give one of the two"
                )
            formula = build_workload(options)
            workload, lines = formula.workload, formula.assumptions
        if workload is None:
            raise SchedsimError(
                "no workload: neither a file, nor --layers, nor --preset",
                hint="try --layers 96, --preset gpt2, a chain.json, or model:resnet50",
            )
        if found is not None:
            check_plan(found, workload, measured=self.is_model)
            if check and found.schedule is not None:
                check_claims(found, found.simulate(workload), times=not self.is_model)
            run = found.setting.resolve(workload)
            return Loaded(run, lines, found, workload, origin)
        return Loaded(workload, lines, found, workload, origin)


@dataclass(frozen=True)
class Loaded:
    """What a `Source` holds.

    Attributes
    ----------
    given
        The workload without the variants of the plan.
    origin
        Of a model, what a plan says for `schedsim.apply`.
    """

    workload: Chain | Graph
    assumptions: tuple[str, ...]
    plan: Plan | None
    given: Chain | Graph
    origin: StepChanges | None = None

    def budget_bytes(self, budget: int | str) -> int:
        """Bytes of ``--mem``: a share is one of the store-all peak of the workload as given."""
        return read_budget(budget, self.given)

    def label(self, op_name: str) -> str:
        """An op's name, with that of its stage where it has one."""
        return self.workload.stage_label(op_name)


def schedule_of(plan: Plan) -> Schedule:
    """The plan's schedule; `InfeasibleBudgetError` where it has none."""
    if plan.schedule is None:
        least = plan.min_feasible_bytes
        raise InfeasibleBudgetError(
            f"the plan has no schedule: nothing fits {format_bytes(plan.budget_bytes)}",
            plan=plan,
            hint=f"{plan.least.sentence(plan.binding_op or '')}: --mem {size_text(least)}"
            if least is not None
            else "plan again with a larger budget",
        )
    return plan.schedule


def need_torch() -> None:
    """`MissingDependencyError` where torch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingDependencyError(
            "models need torch, which is not installed", hint="pip install 'schedsim[torch]'"
        )


def has_link(plan: Plan) -> bool:
    """Whether `plan` was made with a link to host memory."""
    return plan.setting.link is not None


def remembered(source: Source, items: Mapping[str, Chain | Graph | Plan]) -> Source | None:
    """The source that a plan among `items` remembers, with the plan; ``None`` if one is given.

    Raises
    ------
    SchedsimError
        Formula options are given that differ from those of the plan, or its file is not there.
    """
    from ..plans.plan import Plan

    plans = [(name, item) for name, item in items.items() if isinstance(item, Plan)]
    others = [name for name in source.files if name not in dict(plans)]
    if len(plans) != 1 or others:
        return None
    name, plan = plans[0]
    known = plan.workload.source
    if source.given and not source.is_model:
        if known is not None and known.kind == "formula":
            _refuse_difference(source, known.options, name)
        return None
    if known is None:
        raise SchedsimError(
            f"{name} does not say where its workload {plan.workload.name!r} comes from",
            hint="give the workload beside it: its file, or the options of its formula",
        )
    if known.kind == "formula":
        return Source(source.files, no_options(_checked_options(known.options, name)))
    if known.kind == "model":
        where = {
            **no_options({}),
            "device": source.options["device"] or known.options.get("device"),
        }
        level = source.level or known.options.get("level")
        return Source((known.target, *source.files), where, level)
    file = _found_file(known.path, beside=name)
    return Source((file, *source.files), source.options, source.level)


def _refuse_difference(source: Source, known: Mapping[str, Any], name: str) -> None:
    """Refuse formula options that are not those of the plan in the file `name`."""
    flags, given = _flags(), source.given
    differing = [field for field in {**known, **given} if known.get(field) != given.get(field)]
    if differing:
        said = "; ".join(
            f"{flags.get(field, field)} is {given.get(field, 'not given')}, "
            f"in the plan {known.get(field, 'not given')}"
            for field in differing
        )
        raise SchedsimError(
            f"{name} was made for another workload: {said}",
            hint="leave these options out: the plan remembers its own",
        )


def _checked_options(known: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    unknown = sorted(set(known) - set(_flags()))
    if unknown:
        raise SchedsimError(
            f"{name}: workload.source.options.{unknown[0]} is no option of a formula",
            hint="the file was edited, or made by another version",
        )
    return known


def _found_file(path: str, *, beside: str) -> str:
    """The workload file as the plan names it, from here or from the plan's own folder."""
    for candidate in (Path(path), Path(beside).parent / path):
        if candidate.is_file():
            return str(candidate)
    raise SchedsimError(
        f"{beside} was made for the workload in {path}, which is not there",
        hint="give the workload file beside the plan",
    )


def check_plan(plan: Plan, workload: Chain | Graph, *, measured: bool = False) -> None:
    """Refuse the plan of another workload, whose op names may well fit this one.

    Of a `measured` workload the sizes alone must be the same, as times never are: the plan's
    schedule must have the plan's peak.
    """
    from ..files.workload_files import workload_hash
    from ..plans.claims import check_belongs

    if plan.workload.content_hash == workload_hash(workload):
        return
    same = False
    if (
        measured
        and not plan.variants
        and plan.schedule is not None
        and plan.static_bytes == workload.static_bytes
    ):
        try:
            same = plan.simulate(workload).peak_bytes == plan.peak_bytes
        except InvalidScheduleError:
            same = False
    if not same:
        check_belongs(plan, workload)


def _load(name: str) -> Chain | Graph | Plan:
    from ..files.document import load

    if is_target(name):
        raise SchedsimError(f"{name} is a second workload", hint="give one at a time")
    return named_workload(name) if is_named(name) else load(name)


def _describe(item: Chain | Graph, name: str) -> str:
    from ..dataflow.chain import Chain

    size = f"{item.num_stages} stages" if isinstance(item, Chain) else f"{item.num_ops} ops"
    return f"{item.kind} {item.name} from {name}, {size}"


def budget_option(*, required: bool) -> Callable[..., Any]:
    """``--mem SIZE``."""
    return click.option(
        "--mem",
        "budget",
        type=BudgetType(),
        required=required,
        metavar="SIZE|SHARE",
        help="Budget for the simulated peak, model state included: 8GB, 7.5GiB, or 60% of what the "
        "step takes that recomputes nothing.",
    )


def schedule_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--schedule FILE``, read by `given_schedule`."""
    return click.option(
        "--schedule",
        "schedule_file",
        metavar="FILE",
        shell_complete=complete.files,
        help="Op names; - reads stdin.",
    )(function)


def given_schedule(loaded: Loaded, schedule_file: str) -> Schedule:
    """The schedule that the op names in a file, or on stdin, say."""
    from ..simulation.schedule import Schedule

    if loaded.plan is not None:
        raise SchedsimError("both a plan and --schedule are given", hint="give one of the two")
    data = sys.stdin.buffer.read() if schedule_file == "-" else Path(schedule_file).read_bytes()
    try:
        names = data.decode().split()
    except UnicodeDecodeError:
        raise SchedsimError(
            f"--schedule {schedule_file}: not a text file", hint="op names with spaces between them"
        ) from None
    if not names:
        raise SchedsimError(f"--schedule {schedule_file}: no op names", hint="F0 F1 loss ...")
    return Schedule.from_names(names)


def capacity_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--capacity POOL=SIZE``, as often as there are pools to limit."""

    def read(
        ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
    ) -> dict[str, int] | None:
        found: dict[str, int] = {}
        for text in value:
            pool, equals, size = text.partition("=")
            if not equals or not pool:
                raise SchedsimError(
                    f"--capacity {text}: no pool and size", hint="write it like host=64GiB"
                )
            if pool in found:
                raise SchedsimError(f"--capacity {pool} is given twice", hint="give it once")
            try:
                found[pool] = parse_bytes(size)
            except UnitError as error:
                raise UnitError(f"--capacity {text}: {error.message}", hint=error.hint) from None
        return found or None

    return click.option(
        "--capacity",
        "capacities",
        multiple=True,
        metavar="POOL=SIZE",
        callback=read,
        help="Runs wait until their memory fits: device=24GiB, host=64GiB.",
    )(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(
        function
    )


def output_option(help_text: str, *, required: bool = False) -> Callable[..., Any]:
    """``-o FILE``, with its folder checked before anything is computed."""

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value is not None:
            path = Path(value)
            if not path.parent.is_dir():
                raise SchedsimError(
                    f"-o {value}: folder {path.parent} does not exist", hint="make it first"
                )
            if path.is_dir():
                raise SchedsimError(f"-o {value} is a folder", hint="name a file in it")
            if not os.access(path.parent, os.W_OK):
                raise SchedsimError(
                    f"-o {value}: folder {path.parent} is not writable", hint="choose another"
                )
        return value

    return click.option(
        "-o",
        "--output",
        metavar="FILE",
        callback=check,
        required=required,
        help=help_text,
        shell_complete=complete.files,
    )


def check_fields() -> Sequence[str]:
    """Fields of `WorkloadOptions` that no option sets; empty, as a test asserts."""
    from ..workloads import WorkloadOptions

    known = {field for _, field, _, _ in _OPTIONS} | {field for _, field, _ in _FLAGS}
    known |= {"static", "allow"}
    return [field.name for field in fields(WorkloadOptions) if field.name not in known]
