"""Files of schedsim: recognising the schema, and reading a chain, a graph or a plan."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from pathlib import Path
from typing import Any

from ..checks.checked_arguments import checked
from ..checks.value_checks import shown
from ..dataflow.chain import Chain
from ..dataflow.graph import Graph
from ..errors import InvalidWorkloadError
from ..plans.plan import Plan
from .atomic import write_atomically
from .plan_files import PLAN_SCHEMA, plan_to_dict, read_plan
from .plan_files_1 import PLAN_SCHEMA_1, read_plan_1
from .reader import Reader, parse_json
from .workload_files import (
    CHAIN_SCHEMA,
    GRAPH_SCHEMA,
    read_chain,
    read_graph,
    workload_to_dict,
)

SCHEMAS = (CHAIN_SCHEMA, GRAPH_SCHEMA, PLAN_SCHEMA, PLAN_SCHEMA_1)

# A graph of 10,000 ops takes about 2 MB; a larger file than this is not schedsim's.
MAX_FILE_BYTES = 512 * 2**20

_GZIP = b"\x1f\x8b"


@checked
def load(path: str | os.PathLike[str]) -> Chain | Graph | Plan:
    """The chain, graph or plan in the JSON file at `path`, which gzip may have compressed.

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
        # A pipe has no size, so reading itself stops past the limit.
        size = os.fstat(stream.fileno()).st_size
        data = stream.read(MAX_FILE_BYTES + 1) if size <= MAX_FILE_BYTES else b""
    if data.startswith(_GZIP):
        data = _decompressed(data, file)
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


def _decompressed(data: bytes, file: Path) -> bytes:
    """The decompressed data, up to one byte more than the limit."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidWorkloadError(
            f"{file}: gzip cannot read it: {error}", hint="is the file complete?"
        ) from None


@checked
def save(item: Chain | Graph | Plan, path: str | os.PathLike[str]) -> None:
    """Write `item` to the JSON file at `path`, atomically: all of it, or nothing."""
    write_atomically(path, json.dumps(to_dict(item), indent=1) + "\n")


def to_dict(item: Chain | Graph | Plan) -> dict[str, Any]:
    """The content of the file for `item`."""
    return plan_to_dict(item) if isinstance(item, Plan) else workload_to_dict(item)


def from_dict(document: Any) -> Chain | Graph | Plan:
    """The chain, graph or plan that the content of a file describes."""
    reader = Reader(document, "")
    schema = reader.take("schema", str)
    if schema == CHAIN_SCHEMA:
        return read_chain(reader)
    if schema == GRAPH_SCHEMA:
        return read_graph(reader)
    if schema == PLAN_SCHEMA:
        return read_plan(reader)
    if schema == PLAN_SCHEMA_1:
        return read_plan_1(reader)
    reads = _READ_ELSEWHERE.get(schema.partition("/")[0])
    raise InvalidWorkloadError(
        f"{shown(schema)} is not a schema this version reads"
        if reads is None
        else f"{shown(schema)} is neither a chain nor a graph nor a plan of one",
        path="schema",
        hint=f"one of {', '.join(SCHEMAS)}" if reads is None else f"{reads} reads it",
    )


_READ_ELSEWHERE = {
    "schedsim.pipeline-plan": "schedsim pipeline --replay",
    "schedsim.device": "--device",
    "schedsim.times": "--times",
    "schedsim.validation": "schedsim plot validate",
}
