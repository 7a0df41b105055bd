"""Notebooks of the gallery: run in one kernel, with what came out kept in them.

    python docs/notebooks.py [FILE ...]      # runs them, and writes what came out into them

Needs the extra `docs`. A notebook is a list of cells; its pictures are those that notebooks show of
schedsim's own objects.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))

# What differs between runs and machines: times of planning, addresses, seconds of a measurement.
_VOLATILE = re.compile(r"\bin \d[\d.]* (?:us|ms|s)\b|0x[0-9a-f]+")


def executed(files: Iterable[Path]) -> Iterator[tuple[Path, Any, Any]]:
    """Each file with its notebook as it stands and as it comes out now; one kernel for all."""
    import nbformat
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    environment = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": _path(), "PYTHONHASHSEED": "0"}
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment)
    try:
        for file in files:
            before = nbformat.read(file, as_version=4)
            now = nbformat.read(file, as_version=4)
            for cell in now.cells:
                if cell.cell_type == "code":
                    cell.outputs, cell.execution_count = [], None
            NotebookClient(now, timeout=120, km=manager, record_timing=False).execute()
            yield file, before, now
    finally:
        manager.shutdown_kernel(now=True)


def _path() -> str:
    return os.pathsep.join([str(DOCS.parent), os.environ.get("PYTHONPATH", "")])


def texts(notebook: Any) -> list[str]:
    """The output of each cell, in words: pictures, times and addresses left out."""
    found = []
    for cell in notebook.cells:
        words = []
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            shown = re.sub(r"<[^>]*>", " ", data.get("text/html", data.get("text/plain", "")))
            words.append(output.get("text", shown))
        found.append(" ".join(_VOLATILE.sub("T", " ".join(words)).split()))
    return found


def lean(notebook: Any) -> Any:
    """`notebook` as it is kept: of what has a picture its long text is dropped, streams are one."""
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        outputs: list[Any] = []
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", {}):
                output["data"].pop("text/plain", None)
            if outputs and output.output_type == outputs[-1].output_type == "stream":
                outputs[-1]["text"] += output["text"]
            else:
                outputs.append(output)
        if "outputs" in cell:
            cell["outputs"] = outputs
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python", "pygments_lexer": "python"},
    }
    return notebook


if __name__ == "__main__":
    import nbformat

    for path, _, made in executed([Path(name) for name in sys.argv[1:]] or NOTEBOOKS):
        nbformat.write(lean(made), path)
        print(path)
