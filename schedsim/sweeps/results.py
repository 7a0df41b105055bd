"""A results file that survives a kill: one JSON line per run, appended whole, under a lock.

During a sweep, lines are in the order in which runs end; after it, in the order of the experiment.
So the complete file is the same whatever happened on the way.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ..checks.value_checks import shown
from ..errors import SchedsimError, UnsupportedError

SCHEMA = "schedsim.result/1"

_MISSING = object()
_NUMBER = (int, float)
_FIELDS: dict[str, tuple[type, ...]] = {
    "key": (str,),
    "workload": (str,),
    "content_hash": (str,),
    "budget": (str,),
    "budget_bytes": (int,),
    "store_all_bytes": (int,),
    "planner": (str,),
    "options": (dict,),
    "status": (str,),
}
_STATUSES = ("optimal", "feasible", "infeasible", "error")
_OF_ERRORS: dict[str, tuple[type, ...]] = {"error": (dict,)}
_OF_PLANS: dict[str, tuple[type, ...]] = {
    "overhead": (*_NUMBER, type(None)),
    "store_all_s": _NUMBER,
    "lower_bound_s": _NUMBER,
    "bound_scope": (str,),
    "min_feasible_bytes": (int, type(None)),
}
_OF_CLUSTERS: dict[str, tuple[type, ...]] = {
    "key": (str,),
    "workload": (str,),
    "budget_bytes": (int,),
    "options": (dict,),
    "status": (str,),
}


def read_rows(path: str | os.PathLike[str], *, clusters: bool = False) -> list[dict[str, Any]]:
    """The rows of the results file at `path`; a line cut off at its end is left out.

    Parameters
    ----------
    clusters
        Whether rows may be of settings of clusters, which no planner made.

    Raises
    ------
    SchedsimError
        A line before the last is not a result, or lacks a field.
    OSError
        The file cannot be read.
    """
    rows = _parse(Path(path).read_bytes(), str(path))[0]
    check_rows(rows, str(path))
    if not clusters and any(row.get("kind") == "cluster" for row in rows):
        raise SchedsimError(
            f"{path}: its rows are of clusters, and no planner made them",
            hint="the same `schedsim sweep` prints them again",
        )
    return rows


def check_rows(rows: Iterable[Mapping[str, Any]], name: str) -> None:
    """Refuse rows of the file `name` that lack a field, or have one of another type.

    Raises
    ------
    SchedsimError
        The message names the row and the field.
    """
    for number, row in enumerate(rows, start=1):
        failed = row.get("status") == "error"
        if row.get("kind") == "cluster":
            fields = _OF_CLUSTERS | (_OF_ERRORS if failed else {})
        else:
            fields = _FIELDS | (_OF_ERRORS if failed else _OF_PLANS)
        for field, kinds in fields.items():
            value = row.get(field, _MISSING)
            wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
            if field == "status":
                wrong = value not in _STATUSES
            elif field == "error" and not wrong:
                wrong = not isinstance(row["error"].get("message"), str)
            if wrong:
                what = "is missing" if value is _MISSING else f"is {shown(value)}"
                raise SchedsimError(
                    f"{name}: row {number} is no result of a sweep: {field} {what}",
                    hint="take the row out of the file, and sweep again",
                )


def _parse(data: bytes, name: str) -> tuple[list[dict[str, Any]], int]:
    """The rows in `data`, and how many bytes of `data` they take."""
    rows: list[dict[str, Any]] = []
    end = 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        row = _row(line) if line.endswith(b"\n") else None
        if row is None:
            # Only the last write can be cut off, and its beginning is the beginning of a row.
            if number == len(lines) and (rows or _could_begin(line)):
                break
            raise SchedsimError(
                f"{name}: line {number} is no result of a sweep",
                hint="name the file that a sweep wrote, or a new one",
            )
        rows.append(row)
        end += len(line)
    return rows, end


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    right = isinstance(row, dict) and row.get("schema") == SCHEMA
    return row if right and isinstance(row.get("key"), str) else None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of a row")


def _could_begin(line: bytes) -> bool:
    start = encode({"schema": SCHEMA})[:-2]
    return line.startswith(start) or start.startswith(line)


def encode(row: Mapping[str, Any]) -> bytes:
    """A row as its line."""
    return json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"


class ResultFile:
    """The results file at `path`, locked by this process until it is closed.

    Opening the file drops a cut-off line. `append` adds a row, which is on disk when the call
    returns.
    `finish` puts all rows in their final order, in one step.

    Raises
    ------
    SchedsimError
        Another process holds the lock, or the file is not a results file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "r.jsonl")
    ...     with ResultFile(path) as file:
    ...         file.append({"schema": SCHEMA, "key": "b"})
    ...         file.append({"schema": SCHEMA, "key": "a"})
    ...         file.finish([{"schema": SCHEMA, "key": "a"}, {"schema": SCHEMA, "key": "b"}])
    ...     [json.loads(line)["key"] for line in path.read_bytes().splitlines()]
    ['a', 'b']
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()
        self._handle = _locked(self.path)
        try:
            data = self.path.read_bytes()
            rows, end = _parse(data, str(path))
            self.num_dropped_bytes = len(data) - end
            if self.num_dropped_bytes:
                os.ftruncate(self._handle, end)
                os.fsync(self._handle)
        except BaseException:
            os.close(self._handle)
            raise
        # If two rows have the same key, the last one counts: its run was repeated on request.
        self.rows: dict[str, dict[str, Any]] = {row["key"]: row for row in rows}

    def __enter__(self) -> ResultFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def append(self, row: Mapping[str, Any]) -> None:
        """Add `row`, by one write; it is on disk when this returns."""
        write_whole(self._handle, encode(row))
        self.rows[row["key"]] = dict(row)

    def finish(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace the whole content by `rows`, in their order, through a rename."""
        content = b"".join(encode(row) for row in rows)
        if content == self.path.read_bytes():
            return
        # A fixed name: a file that a kill leaves behind is overwritten the next time.
        temporary = self.path.with_name(f".{self.path.name}.new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write_whole(handle, content)
            os.fchmod(handle, os.fstat(self._handle).st_mode & 0o7777)
        finally:
            os.close(handle)
        os.replace(temporary, self.path)

    def close(self) -> None:
        """Release the lock."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def write_whole(handle: int, data: bytes) -> None:
    """Write `data` at the end of the file, and wait until the disk has it."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
    os.fsync(handle)


def _locked(path: Path) -> int:
    """A handle on the file at `path` that no other process has locked."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        raise UnsupportedError(
            "sweep needs a system with file locks of POSIX", hint="run it on Linux or macOS"
        ) from None
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise SchedsimError(
                f"another sweep is writing {path.name}", hint="wait for it, or name another file"
            ) from None
        # A sweep that has just ended may have replaced the file that was opened.
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            return handle
        os.close(handle)


def in_order(
    keys: Sequence[str], heads: Mapping[str, Mapping[str, Any]], rows: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of `keys` in that order, then those of other experiments by key.

    Names come from `heads`, as another experiment may name the same workload differently.
    """
    ordered = [{**rows[key], **heads[key]} for key in keys if key in rows]
    return ordered + [rows[key] for key in sorted(rows) if key not in heads]
