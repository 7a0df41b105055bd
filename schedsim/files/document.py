"""Reading and writing ``schedsim.chain/1``, ``schedsim.graph/1`` and ``schedsim.plan/1``."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import shown
from ..dataflow.chain import Chain, Stage
from ..dataflow.graph import Graph
from ..errors import InvalidWorkloadError
from ..simulation.schedule import Schedule
from .parts import (
    chosen_to_list,
    op_to_dict,
    read_chosen,
    read_graph_variants,
    read_op,
    read_stage_variants,
    variant_to_dict,
)
from .reader import Reader, parse_json

if TYPE_CHECKING:
    from ..plans.plan import Plan

CHAIN_SCHEMA = "schedsim.chain/1"
GRAPH_SCHEMA = "schedsim.graph/1"
PLAN_SCHEMA = "schedsim.plan/1"
SCHEMAS = (CHAIN_SCHEMA, GRAPH_SCHEMA, PLAN_SCHEMA)

# A 10,000-op graph takes about 2 MB; beyond this the file is not one of ours.
MAX_FILE_BYTES = 512 * 2**20


def load(path: str | os.PathLike[str]) -> Chain | Graph | Plan:
    """The chain, graph or plan in the JSON file at `path`.

    Raises
    ------
    InvalidWorkloadError
        The file is malformed; the message names the file and the path of the field.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> import schedsim, tempfile, pathlib
    >>> chain = schedsim.Chain("one", 1, (schedsim.Stage("s0", 1, 2, 1, 1),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "one.json")
    ...     schedsim.save(chain, file)
    ...     schedsim.load(file) == chain
    True
    """
    file = Path(path)
    with file.open("rb") as stream:
        # A pipe has no size: reading stops past the limit all the same.
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(MAX_FILE_BYTES + 1) if size <= MAX_FILE_BYTES else b""
    if size > MAX_FILE_BYTES or len(data) > MAX_FILE_BYTES:
        raise InvalidWorkloadError(
            f"{file}: more than the limit of {MAX_FILE_BYTES} bytes",
            hint="a workload or plan file is JSON of a few megabytes",
        )
    try:
        return from_dict(parse_json(data))
    except InvalidWorkloadError as error:
        located = InvalidWorkloadError(f"{file}: {error.message}", hint=error.hint)
        located.path = error.path
        raise located from None


def save(item: Chain | Graph | Plan, path: str | os.PathLike[str]) -> None:
    """Write `item` to the JSON file at `path`, atomically: all of it, or nothing."""
    write_atomically(path, json.dumps(to_dict(item), indent=1) + "\n")


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Put `content` at `path` through a temporary file beside it and a rename.

    A link is followed and stays one; what is no regular file, a pipe for one, is simply written to.
    An existing file keeps its permissions.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(path)
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    target = target.resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(target.parent))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".schedsim-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, _permissions(target))  # mkstemp's 0600 is not what a user expects
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _permissions(target: Path) -> int:
    """What `target` has, or what a new file gets."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def to_dict(item: Chain | Graph | Plan) -> dict[str, Any]:
    """The content of the file for `item`."""
    if isinstance(item, Chain):
        return chain_to_dict(item)
    if isinstance(item, Graph):
        return graph_to_dict(item)
    return plan_to_dict(item)


def from_dict(document: Any) -> Chain | Graph | Plan:
    """The chain, graph or plan that the content of a file describes."""
    reader = Reader(document, "")
    schema = reader.take("schema", str)
    if schema == CHAIN_SCHEMA:
        return _read_chain(reader)
    if schema == GRAPH_SCHEMA:
        return _read_graph(reader)
    if schema == PLAN_SCHEMA:
        return _read_plan(reader)
    raise InvalidWorkloadError(
        f"{shown(schema)} is not a schema this version reads",
        path="schema",
        hint=f"one of {', '.join(SCHEMAS)}",
    )


def workload_hash(workload: Chain | Graph) -> str:
    """SHA-256 over everything in the workload that a plan depends on (not its name)."""
    cached = workload.__dict__.get("_content_hash")
    if cached is None:
        document = to_dict(workload)
        del document["name"]
        # What may be chosen is not what is run: a plan carries the variants that it uses.
        document.pop("variants", None)
        for stage in document.get("stages", ()):
            stage.pop("variants", None)
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        cached = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        workload.__dict__["_content_hash"] = cached
    return str(cached)


def chain_to_dict(chain: Chain) -> dict[str, Any]:
    """The content of a ``schedsim.chain/1`` file."""
    document: dict[str, Any] = {
        "schema": CHAIN_SCHEMA,
        "name": chain.name,
        "input_bytes": chain.input_bytes,
        "static_bytes": chain.static_bytes,
    }
    if chain.loss_s:
        document["loss_s"] = float(chain.loss_s)
    if chain.loss_workspace_bytes:
        document["loss_workspace_bytes"] = chain.loss_workspace_bytes
    document["stages"] = [_stage_to_dict(stage) for stage in chain.stages]
    return document


def _stage_to_dict(stage: Stage) -> dict[str, Any]:
    item: dict[str, Any] = {
        "name": stage.name,
        "forward_s": float(stage.forward_s),
        "backward_s": float(stage.backward_s),
        "output_bytes": stage.output_bytes,
        "saved_bytes": stage.saved_bytes,
        "forward_workspace_bytes": stage.forward_workspace_bytes,
        "backward_workspace_bytes": stage.backward_workspace_bytes,
    }
    if stage.saving_workspace_bytes is not None:
        item["saving_workspace_bytes"] = stage.saving_workspace_bytes
    if stage.variants:
        item["variants"] = [variant_to_dict(variant) for variant in stage.variants]
    return item


def _read_chain(reader: Reader) -> Chain:
    reader.skip("description")
    arguments: dict[str, Any] = {
        "name": reader.take("name", str),
        "input_bytes": reader.take_bytes("input_bytes"),
        "static_bytes": reader.take_bytes("static_bytes", 0),
        "loss_s": reader.take_seconds("loss_s", 0.0),
        "loss_workspace_bytes": reader.take_bytes("loss_workspace_bytes", 0),
    }
    stages = []
    for item in reader.take_objects("stages"):
        stages.append(
            Stage(
                name=item.take("name", str),
                forward_s=item.take_seconds("forward_s"),
                backward_s=item.take_seconds("backward_s"),
                output_bytes=item.take_bytes("output_bytes"),
                saved_bytes=item.take_bytes("saved_bytes"),
                forward_workspace_bytes=item.take_bytes("forward_workspace_bytes", 0),
                backward_workspace_bytes=item.take_bytes("backward_workspace_bytes", 0),
                saving_workspace_bytes=item.take_optional_bytes("saving_workspace_bytes", None),
                variants=read_stage_variants(item),
            )
        )
        item.finish()
    reader.finish()
    return Chain(stages=tuple(stages), **arguments)


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """The content of a ``schedsim.graph/1`` file."""
    ops = [op_to_dict(op) for op in graph.ops]
    document: dict[str, Any] = {
        "schema": GRAPH_SCHEMA,
        "name": graph.name,
        "static_bytes": graph.static_bytes,
        "inputs": dict(graph.inputs),
        "ops": ops,
        "results": list(graph.results),
    }
    if graph.variants:
        document["variants"] = [variant_to_dict(variant) for variant in graph.variants]
    if graph.pool_static_bytes:
        document["pool_static_bytes"] = dict(graph.pool_static_bytes)
    if graph.input_pools:
        document["input_pools"] = dict(graph.input_pools)
    return document


def _read_graph(reader: Reader) -> Graph:
    reader.skip("description")
    arguments: dict[str, Any] = {
        "name": reader.take("name", str),
        "static_bytes": reader.take_bytes("static_bytes", 0),
        "inputs": reader.take_sizes("inputs", {}),
        "results": reader.take_names("results", ()),
        "pool_static_bytes": reader.take_sizes("pool_static_bytes", {}),
        "input_pools": reader.take_texts("input_pools", {}),
    }
    ops = tuple(read_op(item) for item in reader.take_objects("ops"))
    arguments["variants"] = read_graph_variants(reader)
    reader.finish()
    return Graph(ops=ops, **arguments)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """The content of a ``schedsim.plan/1`` file."""
    reference = plan.workload
    document: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "workload": {
            "name": reference.name,
            "kind": reference.kind,
            "content_hash": reference.content_hash,
        },
        "budget_bytes": plan.budget_bytes,
        "planner": plan.planner,
        "options": dict(plan.options),
        "status": plan.status,
        "peak_bytes": plan.peak_bytes,
        "static_bytes": plan.static_bytes,
        "makespan_s": plan.makespan_s,
        "store_all_s": plan.store_all_s,
        "overhead": plan.overhead,
        "lower_bound_s": plan.lower_bound_s,
        "bound_scope": plan.bound_scope,
        "gap": plan.gap,
        "planning_s": plan.planning_s,
        "min_feasible_bytes": plan.min_feasible_bytes,
        "binding_op": plan.binding_op,
        "candidates": [
            {name: getattr(row, name) for name in row.__slots__} for row in plan.candidates
        ],
        "schedule": plan.schedule.names if plan.schedule is not None else None,
        "versions": dict(plan.versions),
        "seed": plan.seed,
    }
    if plan.variants:
        document["variants"] = chosen_to_list(plan.variants)
    return document


def _read_plan(reader: Reader) -> Plan:
    from ..plans.plan import STATUSES, Candidate, Plan, WorkloadRef

    item = reader.take_object("workload")
    reference = WorkloadRef(
        name=item.take("name", str),
        kind=item.take_choice("kind", ("chain", "graph")),
        content_hash=item.take("content_hash", str),
    )
    item.finish()
    rows = []
    for row in reader.take_objects("candidates"):
        rows.append(
            Candidate(
                planner=row.take("planner", str),
                status=row.take_choice("status", STATUSES),
                peak_bytes=row.take_optional_bytes("peak_bytes"),
                makespan_s=row.take_optional_total_seconds("makespan_s"),
                overhead=row.take_optional_ratio("overhead"),
                lower_bound_s=row.take_total_seconds("lower_bound_s"),
                bound_scope=row.take("bound_scope", str),
                min_feasible_bytes=row.take_optional_bytes("min_feasible_bytes"),
                planning_s=row.take_seconds("planning_s"),
            )
        )
        row.finish()
    names = reader.take_names("schedule", None)
    plan = Plan(
        workload=reference,
        budget_bytes=reader.take_bytes("budget_bytes"),
        planner=reader.take("planner", str),
        options=reader.take_settings("options"),
        status=reader.take_choice("status", STATUSES),
        peak_bytes=reader.take_optional_bytes("peak_bytes"),
        static_bytes=reader.take_bytes("static_bytes"),
        makespan_s=reader.take_optional_total_seconds("makespan_s"),
        store_all_s=reader.take_total_seconds("store_all_s"),
        overhead=reader.take_optional_ratio("overhead"),
        lower_bound_s=reader.take_total_seconds("lower_bound_s"),
        bound_scope=reader.take("bound_scope", str),
        gap=reader.take_optional_ratio("gap"),
        planning_s=reader.take_seconds("planning_s"),
        min_feasible_bytes=reader.take_optional_bytes("min_feasible_bytes"),
        binding_op=reader.take("binding_op", str, None),
        schedule=Schedule.from_names(names) if names is not None else None,
        candidates=tuple(rows),
        versions=reader.take_texts("versions", {}),
        seed=reader.take("seed", int, None),
        variants=read_chosen(reader),
    )
    reader.finish()
    if (plan.schedule is None) != (plan.status == "infeasible"):
        raise InvalidWorkloadError(
            f"a plan with status {plan.status!r} "
            + ("must have a schedule" if plan.schedule is None else "has none: it must be null"),
            path="schedule",
        )
    for name in ("peak_bytes", "makespan_s", "overhead", "gap"):
        if plan.schedule is not None and getattr(plan, name) is None:
            raise InvalidWorkloadError("null, but the plan has a schedule", path=name)
    return plan
