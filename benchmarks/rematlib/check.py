#!/usr/bin/env python3
"""Checks certificates of RematLib. It stands alone: Python 3.11 and its standard library.

    python check.py [NAME or GROUP ...]              # of the library, by default all
    python check.py INSTANCE.json CERTIFICATE.json [...]
    python check.py CERTIFICATE.json                 # one that carries its workload

Nothing that a certificate says is believed: its schedule is replayed on whole bytes and exact
rationals, its bound proven again. docs/certificates.md says what is in one, and why proofs hold.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections import namedtuple
from fractions import Fraction
from itertools import combinations
from math import gcd, lcm
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PERSISTENT, FIXED, ANY = "persistent schedules", "fixed order of first runs", "any schedule"
FIELDS = ["name", "time_s", "workspace_bytes", "reads", "writes", "optional"]
FIELDS.append("saving_workspace_bytes")


class Rejected(Exception):
    """A statement of a certificate is false, or not proven."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise Rejected(message)


# takes_over: output -> the input whose storage it may take over
Op = namedtuple("Op", "name time workspace saving reads writes optional once takes_over")
# A cut is the first run of an op: ops that surely ran by its end, and after it; tensors surely
# alive in it; bytes of the others, if alive; the room for them; the tensors that are read later.
Cut = namedtuple("Cut", "known after given charged room needed")
# min cost x, coefficients x >= right for each row, low <= x <= high, x whole; `unit` is the seconds
# of a unit of cost: every sum of repeats is a multiple.
LinearProgram = namedtuple("LinearProgram", "rows cost low high unit")


class Graph(namedtuple("Graph", "ops sizes producer results static number seconds")):
    """Tensors by number, graph inputs first, with producer -1; `number` of an op by name."""

    def read_by(self, ops: set[int]) -> set[int]:
        return {t for i in ops for t in self.ops[i].reads}


def read(path: Path) -> Any:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def size(value: Any, least: int = 0) -> int:
    require(type(value) is int and value >= least, f"{value!r} is no number of bytes")
    return int(value)


def rational(value: Any, *kinds: type) -> Fraction:
    """A text like "7/3" or "0.25"; of a JSON number its exact value, a binary fraction."""
    require(type(value) in (kinds or (str,)), f"{value!r:.40} is no rational")
    try:
        require(len(str(value)) < 10_000, "a number of too many digits")
        return Fraction(value)
    except (ValueError, ZeroDivisionError, OverflowError):
        raise Rejected(f"{value!r} is no rational") from None


def digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def content_hash(document: dict[str, Any]) -> str:
    kept = {name: value for name, value in document.items() if name not in ("name", "variants")}
    if "stages" in kept:
        kept["stages"] = [{k: s[k] for k in s if k != "variants"} for s in kept["stages"]]
    return digest(json.dumps(kept, sort_keys=True, separators=(",", ":")))


def lowered(chain: dict[str, Any]) -> dict[str, Any]:
    """The graph of a chain: forwards, the loss, backwards."""
    forward, backward, before, last = [], [], 0, len(chain["stages"])
    for i, s in enumerate(chain["stages"]):
        out = s["output_bytes"]
        rest = size(size(s["saved_bytes"]) - size(out))
        bundle = {f"r{i + 1}": rest} if rest else {}
        work, saving = s.get("forward_workspace_bytes", 0), s.get("saving_workspace_bytes")
        writes = {f"a{i + 1}": out, **bundle}
        forward.append((f"F{i}", s["forward_s"], work, [f"a{i}"], writes, [*bundle], saving))
        work, reads = s.get("backward_workspace_bytes", 0), [f"d{i + 1}", f"a{i}", f"a{i + 1}"]
        writes = {f"d{i}": before} if i else {}
        backward.append((f"B{i}", s["backward_s"], work, [*reads, *bundle], writes, [], None))
        before = out
    work, writes = chain.get("loss_workspace_bytes", 0), {f"d{last}": before}
    loss = ("loss", chain.get("loss_s", 0), work, [f"a{last}"], writes, [], None)
    ops = [dict(zip(FIELDS, op, strict=True)) for op in (*forward, loss, *backward[::-1])]
    static = chain.get("static_bytes", 0)
    return {"static_bytes": static, "inputs": {"a0": chain["input_bytes"]}, "ops": ops}


def make_graph(document: dict[str, Any]) -> Graph:
    """The ops and tensors of a workload, by number; graph inputs come first."""
    schema = document.get("schema")
    require(schema in ("schedsim.chain/1", "schedsim.graph/1"), "no workload of ours")
    document = lowered(document) if schema == "schedsim.chain/1" else document
    require(not {"pool_static_bytes", "input_pools"} & set(document), "pools are not certified")
    inputs = document.get("inputs", {})
    tensors = {name: i for i, name in enumerate(inputs)}
    sizes, producer, ops = [size(value) for value in inputs.values()], [-1] * len(inputs), []
    for i, op in enumerate(document["ops"]):
        plain = op.get("queue", "compute") == "compute" and op.get("required", True)
        require(plain and not op.get("pools"), "copies and streams are not certified")
        require(all(t in tensors for t in op["reads"]), f"{op['name']} reads what is not there")
        reads, most = [tensors[t] for t in op["reads"]], sum(map(size, op["writes"].values()))
        for name, value in op["writes"].items():
            require(name not in tensors, f"{name} is written twice")
            tensors[name] = len(sizes)
            sizes.append(size(value))
            producer.append(i)
        work, saving = op.get("workspace_bytes", 0), op.get("saving_workspace_bytes")
        works = size(work, -most), work if saving is None else size(saving)
        writes, optional = ([tensors[t] for t in op.get(k, ())] for k in ("writes", "optional"))
        over = {tensors[out]: tensors[into] for out, into in op.get("in_place", {}).items()}
        time, once = rational(op["time_s"], int, float), bool(op.get("once"))
        require(time >= 0, f"{op['name']} takes less than no time")
        ops.append(Op(op["name"], time, *works, reads, writes, set(optional), once, over))
    number = {op.name: i for i, op in enumerate(ops)}
    require(len(number) == len(ops), "two ops have one name")
    results = {tensors[name] for name in document.get("results", ())}
    static, seconds = size(document.get("static_bytes", 0)), sum(op.time for op in ops)
    return Graph(ops, sizes, producer, results, static, number, Fraction(seconds))


def replay(graph: Graph, names: list[str]) -> tuple[int, Fraction]:
    """(peak bytes, seconds) of a legal schedule.

    An instance of a tensor lives from the run that writes it to the last run that reads it before
    it is written again, a result to the end; an optional output that nobody reads never lives. An
    output takes over its input's storage if this run is the last use of that instance.
    """
    latest = {t: t for t in range(len(graph.sizes)) if graph.producer[t] < 0}  # tensor -> instance
    instances = [[t, 0, -1, -1] for t in latest]  # tensor, first and last run, taken over from
    ran, wrote, time = set(), [], Fraction(0)
    for k, name in enumerate(names):
        require(name in graph.number, f"run {k}: there is no op {name!r}")
        op = graph.ops[graph.number[name]]
        require(not (op.once and name in ran), f"run {k}: {name} may run once alone")
        ran.add(name)
        time += op.time
        for t in op.reads:
            require(t in latest, f"run {k}: an input of {name} is not there")
            instances[latest[t]][2] = k
        made = range(len(instances), len(instances) + len(op.writes))
        for t in op.writes:
            source = latest[op.takes_over[t]] if t in op.takes_over else -1
            instances.append([t, k, -1 if t in op.optional else k, source])
        latest.update(zip(op.writes, made, strict=True))
        wrote.append((op, made))
    require(len(ran) == len(graph.ops), "an op never runs")
    for t in graph.results:
        instances[latest[t]][2] = len(names) - 1
    change = [0] * (len(names) + 2)
    for t, first, last, source in instances:
        if last < 0:
            continue
        change[first] += graph.sizes[t]
        change[last + 1] -= graph.sizes[t]
        taken = instances[source][0]
        is_result = taken in graph.results and latest[taken] == source
        if source >= 0 and instances[source][2] == first and not is_result:
            shared = min(graph.sizes[t], graph.sizes[taken])
            change[first] -= shared
            change[first + 1] += shared
    peak, live = 0, graph.static
    for k, (op, made) in enumerate(wrote):
        live += change[k]
        saves = any(instances[m][0] in op.optional and instances[m][2] >= 0 for m in made)
        peak = max(peak, live + (op.saving if saves else op.workspace))
    return peak, time


def persistent_curve(graph: Graph) -> list[tuple[int, Fraction]]:
    """Break points (bytes, least seconds) of the persistent schedules of a lowered chain.

    The recurrence of Beaumont et al. 2019 over step functions of memory: stages i..k-1 with a[i]
    stored outside and d[k], but at the chain's end, inside. Equal sub-chains are solved once.
    """
    n = len(graph.ops) // 2
    ahead, loss, back = graph.ops[:n], graph.ops[n], graph.ops[:n:-1]
    scale = lcm(*(op.time.denominator for op in graph.ops))
    x = [graph.sizes[0], *(graph.sizes[op.writes[0]] for op in ahead)]
    saved = [sum(graph.sizes[t] for t in op.writes) for op in ahead]
    keeping = [op.saving if op.optional else op.workspace for op in ahead]
    forward = [int(op.time * scale) for op in ahead]
    both = [int((f.time + b.time) * scale) for f, b in zip(ahead, back, strict=True)]
    work, undo = [op.workspace for op in ahead], [op.workspace for op in back]
    kinds = list(zip(forward, both, x[1:], saved, keeping, work, undo, strict=True))
    number = {kind: i for i, kind in enumerate(kinds)}
    solved: dict[Any, list[Any]] = {}
    table: list[list[Any]] = [[None] * (n + 1) for _ in range(n)]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n + 1):
            key = (tuple(number[kind] for kind in kinds[i:k]), x[i] if i else -1, k == n)
            if key in solved:
                table[i][k] = solved[key]
                continue
            gradient = x[k] if k < n else 0
            need = saved[i] + keeping[i] + gradient
            need = max(need, saved[i] + x[i + 1] + (x[i] if i else 0) + undo[i])
            if k > i + 1:
                points = [(max(need, m + saved[i]), t + both[i]) for m, t in table[i + 1][k]]
            else:
                need = need if k < n else max(need, saved[i] + x[n] + loss.workspace)
                points = [(need, both[i] + (int(loss.time * scale) if k == n else 0))]
            peak = replayed = 0
            for j in range(i + 1, k):
                peak = max(peak, (x[j - 1] if j - 1 > i else 0) + x[j] + work[j - 1])
                replayed += forward[j - 1]
                right = [(m + x[j], t) for m, t in table[j][k]]
                points += merged(right, table[i][j], peak + gradient, replayed)
            kept: list[Any] = []
            for m, t in sorted(points):  # of two with the same memory, the faster comes first
                if not kept or t < kept[-1][1]:
                    kept.append((m, t))
            table[i][k] = solved[key] = kept
    return [(m + graph.static + x[0], Fraction(t, scale)) for m, t in table[0][n]]


def merged(right: list[Any], left: list[Any], least: int, base: int) -> list[Any]:
    """The break points of base + right(m) + left(m) for m >= least."""
    least = max(least, right[0][0], left[0][0])
    points, p, q = [], 0, 0
    for m in sorted({least} | {m for m, _ in right + left if m > least}):
        while p + 1 < len(right) and right[p + 1][0] <= m:
            p += 1
        while q + 1 < len(left) and left[q + 1][0] <= m:
            q += 1
        points.append((m, base + right[p][1] + left[q][1]))
    return points


def make_cut(graph: Graph, budget: int, order: str, i: int) -> Cut:
    op, sizes, producer = graph.ops[i], graph.sizes, graph.producer
    known, after = set(range(i + 1)), set(range(i + 1, len(graph.ops)))
    if order == ANY:  # then only ancestors and descendants are sure
        known, after = {i}, set()
        for j in range(i, -1, -1):
            known |= {producer[t] for t in graph.ops[j].reads} if j in known else set()
        known.discard(-1)
        for j in range(i + 1, len(graph.ops)):
            after |= {j} if {producer[t] for t in graph.ops[j].reads} & (after | {i}) else set()
    inputs = {t for t in range(len(sizes)) if producer[t] < 0}
    needed = graph.results | graph.read_by(after)
    own = set(op.reads) | (set(op.writes) - op.optional)
    room = budget - graph.static - sum(sizes[t] for t in own | (inputs & needed))
    room -= min(op.workspace, op.saving) if op.optional else op.workspace
    given = inputs | own
    charged = [0 if t in given else sizes[t] for t in range(len(sizes))]
    for t, source in op.takes_over.items():
        lasting = producer[source] < 0 or graph.ops[producer[source]].once
        shared = 0 if source in needed and lasting else min(sizes[t], sizes[source])
        if t in op.optional:
            charged[t] -= shared
        else:
            room += shared
    return Cut(known, after, given, charged, room, needed)


def cut_program(graph: Graph, cuts: list[Cut], doubling: bool = False) -> LinearProgram:
    """The MILP that bounds what every schedule pays across cuts, each surely before the next."""
    ops, tensors, count, producer = len(graph.ops), len(graph.sizes), len(cuts), graph.producer
    times = [op.time for op in graph.ops if not op.once]
    scale = lcm(1, *(t.denominator for t in times))
    divisor = gcd(*(int(t * scale) for t in times)) or 1
    price = [0 if op.once else int(op.time * scale) // divisor for op in graph.ops]
    places = [(k, k + 1) for k in range(count)] + [(k, count) for k in range(count - 1)]
    lengths = [2**i for i in range(1, count.bit_length())] if doubling else []
    places += [(k, k + length) for length in lengths for k in range(count - length)]
    first, low, high, cost = count * tensors, [], [], [0] * (count * tensors)
    for cut in cuts:
        low += [int(t in cut.given) for t in range(tensors)]
        high += [int(t in cut.given or producer[t] in cut.known) for t in range(tensors)]
    for place, (k, _) in enumerate(places):
        low += [0] * ops
        high += [int(p in cuts[k].known and not graph.ops[p].once) for p in range(ops)]
        cost += price if place < count else [0] * ops
    rows: list[tuple[dict[int, int], int]] = []
    for k, cut in enumerate(cuts):
        alive = range(k * tensors, (k + 1) * tensors)
        fits = {alive[t]: -size for t, size in enumerate(cut.charged) if size and high[alive[t]]}
        rows.append((fits, -cut.room))
    for place, (k, end) in enumerate(places):
        cut, alive = cuts[k], range(k * tensors, (k + 1) * tensors)
        again = range(first + place * ops, first + (place + 1) * ops)
        remade = [t for t in range(tensors) if producer[t] in cut.known]
        read = cut.needed if end == count else graph.read_by(cut.after & cuts[end].known)
        rows += [({alive[t]: 1, again[producer[t]]: 1}, 1) for t in remade if t in read]
        for p in sorted(cut.known):
            made = [t for t in graph.ops[p].reads if producer[t] >= 0]
            rows += [({again[p]: -1, alive[t]: 1, again[producer[t]]: 1}, 0) for t in made]
        carried = [] if end == count else remade
        rows += [({end * tensors + t: -1, alive[t]: 1, again[producer[t]]: 1}, 0) for t in carried]
    for place, (k, end) in list(enumerate(places))[count:]:
        for p in sorted(cuts[k].known):
            parts = {first + j * ops + p: 1 for j in range(k, end)}
            rows.append(({**parts, first + place * ops + p: -1}, 0))
    return LinearProgram(rows, cost, low, high, Fraction(divisor, scale))


def leaf_bound(program: LinearProgram, low: list[int], high: list[int], leaf: Any) -> int | None:
    """Units that no point between `low` and `high` is below, by weak duality; None: no point is.

    Multipliers y of any rows, zero or more, give a bound: y right + the least of (cost - y A) x.
    """
    weights = [(row, rational(value)) for row, value in leaf["y"]]
    common = lcm(1, *(value.denominator for _, value in weights))
    empty, total = bool(leaf.get("empty")), 0
    left = {} if empty else {v: c * common for v, c in enumerate(program.cost) if c}
    for row, value in weights:
        known = type(row) is int and 0 <= row < len(program.rows)
        require(known and value >= 0, f"multiplier {value} of row {row!r} is not one")
        coefficients, right = program.rows[row]
        total += int(value * common) * right
        for v, c in coefficients.items():
            left[v] = left.get(v, 0) - int(value * common) * c
    total += sum(c * (low[v] if c > 0 else high[v]) for v, c in left.items())
    require(total > 0 or not empty, "a leaf is said to be empty, and nothing shows it")
    return None if empty else -(-total // common)


def tree_bound(program: LinearProgram, node: Any, low: list[int], high: list[int]) -> int | None:
    """The least bound of the leaves below `node`; None where all are empty."""
    require(isinstance(node, dict), "a node of the tree is none")
    if "branch" not in node:
        return leaf_bound(program, low, high, node)
    v, bounds = node["branch"], []
    free = type(v) is int and 0 <= v < len(low) and (low[v], high[v]) == (0, 1)
    require(free, f"variable {v!r} cannot be branched on")
    for side, value in (("down", 0), ("up", 1)):
        low[v] = high[v] = value
        bounds.append(tree_bound(program, node[side], low, high))
        low[v], high[v] = 0, 1
    return min((bound for bound in bounds if bound is not None), default=None)


def cut_tree(graph: Graph, budget: int, scope: str, proof: dict[str, Any]) -> Fraction:
    """Seconds that no schedule of `scope` within `budget` is below."""
    require(proof["kind"] == "cut-tree" and scope in (FIXED, ANY), f"unknown proof of {scope!r}")
    places = [graph.number[name] for name in proof["cuts"]]
    cuts = [make_cut(graph, budget, scope, i) for i in places]
    for k, later in combinations(range(len(cuts)), 2):
        sure = places[k] in cuts[later].known and places[later] in cuts[k].after
        require(sure, "a cut that is not surely behind the one before it")
    program = cut_program(graph, cuts, proof.get("doubling", False) is True)
    bound = tree_bound(program, proof["tree"], list(program.low), list(program.high))
    require(bound is not None, "the tree says that nothing fits, and there is a schedule")
    return graph.seconds + max(0, bound or 0) * program.unit


class Instance:
    """A workload, with what several of its certificates need."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.graph, self.hash = make_graph(document), content_hash(document)
        self.is_chain = "stages" in document
        self._curve: list[tuple[int, Fraction]] = []

    def curve(self, proof: dict[str, Any], scope: str) -> list[tuple[int, Fraction]]:
        """The break points of a chain, computed once; refused where they are not the proof's."""
        require(self.is_chain and scope == PERSISTENT, f"no program for {scope!r} of this")
        self._curve = self._curve or persistent_curve(self.graph)
        text = "".join(f"{m} {t}\n" for m, t in self._curve)
        require(proof["table_hash"] in (None, digest(text)), "the table has another hash")
        return self._curve


def check_least(instance: Instance, least: dict[str, Any]) -> int:
    """The proven bytes below which no schedule of the scope fits."""
    claimed, scope, proof = size(least["bytes"]), least["scope"], least["proof"]
    if proof["kind"] == "dynamic-programme":
        shown = claimed <= instance.curve(proof, scope)[0][0]
    else:
        require(proof["kind"] == "own-bytes" and scope == ANY, f"unknown proof {proof['kind']!r}")
        graph = instance.graph
        cut = make_cut(graph, claimed - 1, ANY, graph.number[proof["op"]])
        lasting = [t for t in cut.needed if graph.producer[t] in cut.known]
        held = sum(cut.charged[t] for t in lasting if graph.ops[graph.producer[t]].once)
        shown = held > cut.room
    require(shown, f"{claimed} bytes are not shown to be needed")
    return claimed


def check_bound(instance: Instance, budget: int, bound: dict[str, Any]) -> Fraction:
    """The claimed bound, once it is proven."""
    scope, claimed, proof = bound["scope"], rational(bound["bound_s"]), bound["proof"]
    require(scope in (PERSISTENT, FIXED, ANY), f"unknown scope {scope!r}")
    if proof["kind"] == "store-all":
        proven = instance.graph.seconds
    elif proof["kind"] == "dynamic-programme":
        fits = [t for m, t in instance.curve(proof, scope) if m <= budget]
        require(bool(fits), "no persistent schedule fits")
        proven = fits[-1]
    else:
        proven = cut_tree(instance.graph, budget, scope, proof)
    require(claimed <= proven, f"the bound {claimed} is not proven, only {proven}")
    return claimed


def verify(instance: Instance, certificate: Any) -> dict[str, bool]:
    """The parts that the certificate proves; raises `Rejected` if any statement of it is false."""
    try:
        return proven_by(instance, certificate)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Rejected(f"malformed: {type(error).__name__} {error}") from None


def proven_by(instance: Instance, certificate: dict[str, Any]) -> dict[str, bool]:
    require(certificate["schema"] == "schedsim.certificate/1", "another schema")
    require(certificate["instance"]["content_hash"] == instance.hash, "of another instance")
    budget, names = size(certificate["budget_bytes"]), certificate["schedule"]
    least, bound, optimal = (certificate[key] for key in ("least", "bound", "optimal"))
    found = {"schedule": names is not None, "bound": bound is not None, "least": least is not None}
    least_bytes = 0 if least is None else check_least(instance, least)
    if names is None:
        require(least_bytes > budget, "no schedule, and no proof that there is none")
        require(bound is None and not optimal, "a bound on what does not exist")
        return found | {"optimal": False}
    peak, time = replay(instance.graph, names)
    require(size(certificate["peak_bytes"]) == peak <= budget, f"the peak is {peak}")
    require(rational(certificate["makespan_s"]) == time, f"the step takes {time}")
    require(peak >= least_bytes, "the schedule is below the proven least")
    gap = None
    if bound is not None:
        ordered = list(dict.fromkeys(names)) == [op.name for op in instance.graph.ops]
        require(ordered or bound["scope"] != FIXED, "first runs are not in the graph's order")
        proven = check_bound(instance, budget, bound)
        gap = time / proven - 1 if proven else Fraction(0)
        require(gap >= 0, f"the step is faster than a bound over {bound['scope']}: it is none")
        require(rational(certificate["gap"]) == gap, f"the gap is {gap}")
    close = gap is not None and gap <= Fraction(1, 10**9)  # times may be rounded floats
    require(optimal is close, "optimal is said where it is not proven, or proven and not said")
    return found | {"optimal": optimal}


def check_library(root: Path, names: list[str]) -> dict[str, int]:
    """Counts over the instances called, or in the groups called, `names`; all where empty."""
    kinds = ("instances", "schedule", "bound", "least", "optimal", "claimed", "rejected")
    counts = dict.fromkeys(kinds, 0)
    for entry in read(root / "index.json")["instances"]:
        if names and not {entry["name"], entry["group"]} & {*names}:
            continue
        instance = Instance(read(root / entry["file"]))
        counts["instances"] += 1
        wanted = [*dict.fromkeys([entry["least_bytes"], *entry["budgets_bytes"]])]
        known = read(root / "solutions" / f"{entry['name']}.json.gz")
        budgets = [one["budget_bytes"] for one in known["certificates"]]
        for one in known["certificates"] + known.get("any_schedule", []):
            try:
                require(instance.hash == entry["content_hash"], "the index has another hash")
                require(budgets == wanted and one["budget_bytes"] in wanted, "other budgets")
                counts["claimed"] += one["status"] == "optimal"
                for what, is_so in verify(instance, one).items():
                    counts[what] += is_so
            except Rejected as error:
                counts["rejected"] += 1
                print(f"REJECTED {entry['name']} at {one['budget_bytes']}: {error}")
    return counts


def main(arguments: list[str]) -> int:
    """0: all is proven; 1: something is rejected; 2: a file cannot be read."""
    try:
        if not arguments or not Path(arguments[0]).is_file():
            counts = check_library(HERE, arguments)
            print(", ".join(f"{name} {count}" for name, count in counts.items()))
            return 1 if counts["rejected"] or not counts["instances"] else 0
        first, *rest = (read(Path(argument)) for argument in arguments)
        instance = Instance(first.get("workload", first))
        for certificate in rest if "workload" not in first else [first, *rest]:
            proven = [name for name, is_so in verify(instance, certificate).items() if is_so]
            print(f"verified: {', '.join(proven)}")
    except Rejected as error:
        print(f"REJECTED: {error}")
        return 1
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
