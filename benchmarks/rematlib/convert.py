"""Others' graphs, from copies that the reader has, as files that schedsim reads.

    python benchmarks/rematlib/convert.py FORMAT FILE -o GRAPH.json [--name NAME]

None of them is kept here: their licences are their own. FORMAT is one of

- ``node-link``: networkx's JSON with ``cost_cpu`` and ``cost_ram`` of each node, as MOCCASIN's
  repository has its random graphs and Checkmate's;
- ``dtr``: a log of DTR's simulator, a JSON instruction a line.

Nothing is invented where a format is silent: ops get no workspace, and graphs no static bytes.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schedsim import Graph, Op, SchedsimError, save


def from_node_link(text: str, name: str) -> Graph:
    """One op with one output a node; nodes in the order of their numbers, as far as edges let."""
    document = json.loads(text)
    nodes = {node["id"]: node for node in document["nodes"]}
    reads: dict[Any, list[Any]] = {i: [] for i in nodes}
    readers: dict[Any, list[Any]] = {i: [] for i in nodes}
    for link in document["links"]:
        if link["source"] not in reads[link["target"]]:
            reads[link["target"]].append(link["source"])
            readers[link["source"]].append(link["target"])
    waits = {i: len(reads[i]) for i in nodes}
    ready = [i for i in nodes if not waits[i]]
    heapq.heapify(ready)
    ops = []
    while ready:
        i = heapq.heappop(ready)
        node = nodes[i]
        ops.append(
            Op(
                _name_of(node),
                "backward" if node.get("backward") else "forward",
                float(node["cost_cpu"]),
                0,
                tuple(f"{_name_of(nodes[j])}:out" for j in reads[i]),
                {f"{_name_of(node)}:out": int(node["cost_ram"])},
            )
        )
        for j in readers[i]:
            waits[j] -= 1
            if not waits[j]:
                heapq.heappush(ready, j)
    if len(ops) < len(nodes):
        raise SchedsimError("the edges go round in a circle", hint="a training step has none")
    return Graph(name, tuple(ops))


def _name_of(node: dict[str, Any]) -> str:
    return f"{node['id']}.{node['name']}" if "name" in node else str(node["id"])


class DtrLog:
    """A log of DTR's simulator, instruction by instruction.

    A name of the log stands for a tensor and for the tensors whose storage it shares: a view takes
    no bytes, and keeps what it looks at alive. ``MUTATE`` gives new tensors, as the simulator of
    DTR has it. A tensor that is still referred to at the end is a result.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, int] = {}
        self.ops: list[Op] = []
        self.names: dict[str, tuple[str, ...]] = {}  # of the log -> tensors that it stands for
        self.sizes: dict[str, int] = {}
        self.in_backward = False

    def read(self, text: str) -> None:
        """Take all lines from ``START`` on, where there is one."""
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
        starts = [i for i, line in enumerate(lines) if line.get("ANNOTATION") == "START"]
        rest = lines[starts[0] + 1 :] if starts else lines
        rest.reverse()
        while rest:
            line = rest.pop()
            what = getattr(self, f"_{line['INSTRUCTION'].lower()}", None)
            if what is None:
                raise SchedsimError(f"unknown instruction {line['INSTRUCTION']!r}")
            what(line, rest)

    def _annotate(self, line: dict[str, Any], rest: list[Any]) -> None:
        self.in_backward |= line["ANNOTATION"] == "BACKWARD"

    def _constant(self, line: dict[str, Any], rest: list[Any]) -> None:
        tensor = self._new(line["NAME"])
        self.inputs[tensor] = self.sizes[tensor] = int(rest.pop()["MEMORY"])
        self.names[line["NAME"]] = (tensor,)

    def _copy(self, line: dict[str, Any], rest: list[Any]) -> None:
        self.names[line["DST"]] = self.names[line["SRC"]]

    _copy_from = _copy

    def _release(self, line: dict[str, Any], rest: list[Any]) -> None:
        self.names.pop(line["NAME"], None)

    def _call(self, line: dict[str, Any], rest: list[Any]) -> None:
        writes, stands = {}, {}
        for name in line["RESULT"]:
            size, alias = int(rest.pop()["MEMORY"]), int(rest.pop()["ALIAS"])
            tensor = self._new(name)
            writes[tensor] = 0 if alias >= 0 else size
            base = self.names[line["ARGS"][alias]] if alias >= 0 else ()
            stands[name] = (tensor, *base)
        self._add(line, writes)
        self.names |= stands

    def _mutate(self, line: dict[str, Any], rest: list[Any]) -> None:
        changed = [line["ARGS"][i] for i in line["MUTATE"]]
        new = {name: self._new(name) for name in changed}
        self._add(line, {new[name]: sum(map(self.sizes.get, self.names[name])) for name in new})
        self.names |= {name: (tensor,) for name, tensor in new.items()}

    def _add(self, line: dict[str, Any], writes: dict[str, int]) -> None:
        self.in_backward |= "backward" in line["NAME"]
        reads = tuple(dict.fromkeys(t for name in line["ARGS"] for t in self.names[name]))
        phase = "backward" if self.in_backward else "forward"
        name = f"{len(self.ops)}.{line['NAME']}"
        self.ops.append(Op(name, phase, float(line["TIME"]), 0, reads, writes))
        self.sizes |= writes

    def _new(self, name: str) -> str:
        tensor = name
        while tensor in self.sizes:
            tensor += "'"
        return tensor

    def graph(self, name: str) -> Graph:
        """The graph of what was read."""
        made = {tensor for op in self.ops for tensor in op.writes}
        kept = dict.fromkeys(t for tensors in self.names.values() for t in tensors if t in made)
        return Graph(name, tuple(self.ops), self.inputs, 0, tuple(kept))


def from_dtr(text: str, name: str) -> Graph:
    """The calls of a log of DTR's simulator."""
    log = DtrLog()
    log.read(text)
    return log.graph(name)


FORMATS: dict[str, Callable[[str, str], Graph]] = {"node-link": from_node_link, "dtr": from_dtr}


def main(arguments: list[str]) -> int:
    """0: written; 2: the file is not of the format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--name")
    given = parser.parse_args(arguments)
    try:
        graph = FORMATS[given.format](given.file.read_text(), given.name or given.file.stem)
        save(graph, given.output)
    except (OSError, ValueError, KeyError, TypeError, IndexError, SchedsimError) as error:
        print(f"error: {given.file} is not of the format {given.format}: {error}", file=sys.stderr)
        return 2
    print(f"{given.output}: {graph.num_ops} ops")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
