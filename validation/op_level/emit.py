"""A schedule as Python source: the runs of one half of the step, in order, with their frees.

The schedule becomes source rather than a loop over records, because a local variable is the
cheapest holder of a tensor, and ``del`` right after the last use frees it exactly where the
simulator does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..capture.program import Call, Program, Ref, refs
from ..capture.to_graph import op_calls, result_storages
from ..capture.varying_sizes import VaryingSize
from .deliveries import Delivery, deliveries


@dataclass(frozen=True)
class Half:
    """One compiled half of a step.

    Attributes
    ----------
    source : str
        The source that runs, for reading.
    function
        ``forward(resident, counts, random, hook, sizes) -> (outputs, carried)`` or
        ``backward(resident, carried, given, counts, random, hook, sizes) -> gradients``; `carried`
        and `given`, the gradients of outputs, are emptied. A backward in pieces is a generator,
        which yields the gradients of one delivery after the other, for the caller to take out.
    """

    source: str
    function: Callable[..., Any]


@dataclass(frozen=True)
class Halves:
    """The two halves of a step, split where the outputs are handed over to autograd.

    Attributes
    ----------
    forward, backward : Half
    resident : tuple of int
        Values that exist before the step, in the order in which both halves take them.
    repeated_random : tuple of int
        Calls that draw random numbers and run more than once.
    most_states : int
        The most generator states that are kept for a replay at any time.
    carried_states : tuple of int
        Positions in `repeated_random` of the calls whose state the backward half needs.
    read_backward : frozenset of int
        The values in `resident` that the backward half reads.
    carried : tuple of int
        Values that the forward half hands to the backward half, in order.
    sizes : tuple of VaryingSize
        The sizes whose numbers both halves take, in order.
    deliveries : tuple of Delivery
        What a backward in pieces gives away, in order; gradients of inputs come with the last.
    """

    forward: Half
    backward: Half
    resident: tuple[int, ...]
    repeated_random: tuple[int, ...]
    most_states: int
    carried_states: tuple[int, ...] = ()
    read_backward: frozenset[int] = frozenset()
    carried: tuple[int, ...] = ()
    sizes: tuple[VaryingSize, ...] = ()
    deliveries: tuple[Delivery, ...] = ()


def emit(
    program: Program,
    runs: Sequence[int],
    *,
    observed: bool = False,
    in_place: bool = True,
    piece_bytes: int | None = None,
) -> Halves:
    """`runs` (indices of the graph's ops) as two functions; O(runs + reads).

    Parameters
    ----------
    observed
        Whether ``hook(run)`` is called before every run.
    in_place
        Whether sums of gradients overwrite one of their parts.
    piece_bytes
        Make the backward in pieces, of gradients of so many bytes at least; ``None`` for whole.
    """
    return _Emitter(program, runs, observed, in_place, piece_bytes).emit()


@dataclass
class _Emitter:
    program: Program
    runs: Sequence[int]
    observed: bool
    in_place: bool = True
    piece_bytes: int | None = None
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)  # objects that the source refers to
    bound: dict[int, str] = field(default_factory=dict)  # id of an object -> its name
    defined: dict[int, None] = field(default_factory=dict)  # values that are local variables now
    slot: dict[int, int] = field(default_factory=dict)  # repeated random call -> its kept state
    random_left: dict[int, int] = field(default_factory=dict)  # random call -> runs to come
    drawn: dict[int, None] = field(default_factory=dict)  # random calls whose first run is past
    num_states: int = 0  # number of generator states that are kept now
    most_states: int = 0
    frees: list[list[int]] = field(default_factory=list)  # run -> storages that die with it
    alive: list[list[int]] = field(default_factory=list)  # run -> its outputs that outlive it
    full: set[int] = field(default_factory=set)  # runs that make their optional outputs
    mentioned: dict[int, None] = field(default_factory=dict)  # values named in this half
    sizes: dict[VaryingSize, int] = field(default_factory=dict)  # size -> its place in `sizes`
    deliveries: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ops = op_calls(self.program)
        self.of_storage: dict[int, list[int]] = {}
        for v, value in enumerate(self.program.values):
            self.of_storage.setdefault(value.storage, []).append(v)
        self.resident = tuple(
            v
            for v, value in enumerate(self.program.values)
            if self.program.storages[value.storage].kind in ("static", "input") and value.call < 0
        )
        self.resident_set = frozenset(self.resident)

    def emit(self) -> Halves:
        program = self.program
        # Outputs that the caller alone holds behind the last read: it may drop them before.
        others = [*program.gradients.values(), *program.input_gradients.values()]
        self.left_to_caller = {program.values[v].storage for v in program.held}
        self.left_to_caller -= {program.values[v].storage for v in others}
        split = next(k for k, run in enumerate(self.runs) if self.ops[run] == program.seed)
        self.frees, self.alive = self._lifetimes(split)
        self.full = self._full_runs()
        counts = [0] * len(self.ops)
        for run in self.runs:
            counts[run] += 1
        again = tuple(
            i for op, i in enumerate(self.ops) if program.calls[i].random and counts[op] > 1
        )
        self.slot = {i: k for k, i in enumerate(again)}
        self.random_left = {i: counts[op] for op, i in enumerate(self.ops) if i in self.slot}
        forward, carried = self._forward(split)
        states = tuple(k for i, k in self.slot.items() if i in self.drawn and self.random_left[i])
        self.mentioned = {}
        if self.piece_bytes is not None:
            calls = [self.ops[run] for run in self.runs]
            self.deliveries = deliveries(program, calls, split, self.piece_bytes)
        backward = self._backward(split, carried)
        return Halves(
            forward,
            backward,
            self.resident,
            again,
            self.most_states,
            states,
            frozenset(v for v in self.resident if v in self.mentioned),
            tuple(carried),
            tuple(self.sizes),
            tuple(self.deliveries),
        )

    def _forward(self, split: int) -> tuple[Half, list[int]]:
        """The runs before run `split`, and the values of them that the others need."""
        program = self.program
        self._load_resident()
        for k in range(split):
            self._run(k)
        for v in program.outputs:
            self._ensure(v)
        later = self._read_after(split)
        carried = [
            v
            for v in self.defined
            if v not in self.resident_set and program.values[v].storage in later
        ]
        # Its own autograd node must not hold an output, because the output holds the node.
        returned = {program.values[v].storage for v in program.outputs}
        texts = [
            f"v{v}.detach()" if program.values[v].storage in returned else f"v{v}" for v in carried
        ]
        outputs = ", ".join(f"v{v}" for v in program.outputs)
        self.lines.append(f"    return [{outputs}], [{', '.join(texts)}]")
        return self._compile("forward", "resident, counts, random, hook, sizes=()"), carried

    def _backward(self, split: int, carried: list[int]) -> Half:
        """Run `split`, which brings the gradients of outputs, and the runs after it."""
        program = self.program
        self.defined = {}
        self._load_resident()
        if carried:
            self.lines.append(f"    [{', '.join(f'v{v}' for v in carried)}] = carried")
            self.lines.append("    carried.clear()")
        self.defined.update(dict.fromkeys(carried))
        self._count(split)
        alive = self._values_alive(self.alive[split])
        for position, v in enumerate(program.tangents):
            if v in alive:
                self.lines.append(f"    v{v} = given[{position}]")
                self.defined[v] = None
        self.lines.append("    given.clear()")
        self._free(self.frees[split])
        early = {delivery.after: delivery for delivery in self.deliveries[:-1]}
        if split in early:
            self._deliver(early[split])
        for k in range(split + 1, len(self.runs)):
            self._run(k)
            if k in early:
                self._deliver(early[k])
        names = list(program.gradients.values())
        if self.deliveries:
            names = [names[position] for position in self.deliveries[-1].gradients]
        gradients = self._listed([*names, *program.input_gradients.values()])
        self.lines.append(f"    {'yield' if self.deliveries else 'return'} {gradients}")
        return self._compile("backward", "resident, carried, given, counts, random, hook, sizes=()")

    def _deliver(self, delivery: Delivery) -> None:
        """Give gradients away; the caller empties the list, so that nothing here holds them."""
        names = list(self.program.gradients.values())
        gradients = [names[position] for position in delivery.gradients]
        self.lines.append(f"    given = {self._listed(gradients)}")
        self._free(list(dict.fromkeys(self.program.values[v].storage for v in gradients)))
        self.lines.append("    yield given")

    def _listed(self, gradients: list[int]) -> str:
        for v in gradients:
            self._ensure(v)
        return f"[{', '.join(f'v{v}' for v in gradients)}]"

    # -- lifetimes, as the simulator has them -----------------------------------------------------

    def _reads_writes(self, call: Call) -> tuple[list[int], list[int]]:
        writes = [self.program.values[v].storage for v in call.outputs if v >= 0]
        return self.program.base_reads(call), list(dict.fromkeys(writes))

    def _lifetimes(self, split: int) -> tuple[list[list[int]], list[list[int]]]:
        """For each run, the storages that die with it, and its outputs that outlive it.

        Outputs that are left to the caller die with their last read, if that is behind `split`.
        """
        program = self.program
        table = [self._reads_writes(program.calls[i]) for i in self.ops]
        last: dict[int, int] = {}  # storage -> last read of its current instance
        made: dict[int, int] = {}  # storage -> the run that made it
        frees: list[list[int]] = [[] for _ in self.runs]
        alive: list[list[int]] = [[] for _ in self.runs]

        def close(storage: int) -> None:
            end = last.get(storage, -1)
            if end >= 0:
                frees[end].append(storage)
                alive[made[storage]].append(storage)

        for k, run in enumerate(self.runs):
            reads, writes = table[run]
            for storage in reads:
                if storage in made:
                    last[storage] = k
            for storage in writes:
                if storage in made:
                    close(storage)
                made[storage], last[storage] = k, -1
        kept = dict.fromkeys(result_storages(program))
        for storage in made:
            if storage in self.left_to_caller and split < last[storage]:
                close(storage)  # the caller may have dropped it
            elif storage in kept:
                alive[made[storage]].append(storage)
            else:
                close(storage)
        return frees, alive

    def _full_runs(self) -> set[int]:
        """Runs whose optional outputs a later run really reads.

        A run that would read the optional outputs of another may itself run without them, such as a
        batch norm that hands its statistics to the next call of the same module.
        """
        program = self.program
        needed, full = set(result_storages(program)), set()
        for k in reversed(range(len(self.runs))):
            call = program.calls[self.ops[self.runs[k]]]
            args = call.args
            if call.lean is not None:
                lazy = {program.values[call.outputs[p]].storage for p in call.optional}
                if lazy & needed:
                    full.add(k)
                else:
                    args = call.lean[1]
            needed -= {program.values[v].storage for v in call.outputs if v >= 0}
            needed |= {program.values[v].storage for v in refs((args, call.kwargs))}
        return full

    def _read_after(self, split: int) -> set[int]:
        """Storages whose instance from before run `split` is read later, or is a result."""
        program = self.program
        found = set(result_storages(program))
        found -= {program.values[v].storage for v in program.outputs}
        written: set[int] = set()
        for run in self.runs[split + 1 :]:
            reads, writes = self._reads_writes(program.calls[self.ops[run]])
            found.update(s for s in reads if s not in written)
            written.update(writes)
        return found

    def _values_alive(self, storages: list[int]) -> set[int]:
        return {v for s in storages for v in self.of_storage[s]}

    # -- source -----------------------------------------------------------------------------------

    def _load_resident(self) -> None:
        names = "".join(f"v{v}, " for v in self.resident)
        if names:
            self.lines.append(f"    {names}= resident")
        self.defined.update(dict.fromkeys(self.resident))

    def _count(self, k: int) -> None:
        if self.observed:
            self.lines.append(f"    hook({k})")
        self.lines.append(f"    counts[{self.runs[k]}] += 1")

    def _run(self, k: int) -> None:
        program = self.program
        index = self.ops[self.runs[k]]
        call = program.calls[index]
        outlive = self._values_alive(self.alive[k])
        lean = call.lean is not None and k not in self.full
        target, args = call.lean if lean and call.lean else (call.target, call.args)
        taken = call.takes_over >= 0 and self.in_place
        over = program.values[call.takes_over].storage if taken else -1
        if over in self.frees[k] and over not in self.left_to_caller:
            part = Ref(call.takes_over)
            assert call.overwriting is not None
            target = call.overwriting
            args = (part, *(arg for arg in args if arg != part))
        for v in refs((args, call.kwargs)):
            self._ensure(v)
        self._count(k)
        expression = self._expression(target, args, call.kwargs)
        if index in self.slot:
            # A random call that repeats: its first run keeps the generator's state, the others
            # replay it.
            self.random_left[index] -= 1
            how = "again" if self.random_left[index] else "last"
            if index not in self.drawn:
                how = "first"
                self.drawn[index] = None
            # A first run adds a state; a repeat puts the generator's own state aside while it runs.
            self.most_states = max(self.most_states, self.num_states + 1)
            self.num_states += {"first": 1, "again": 0, "last": -1}[how]
            head = f"random.{how}({self.slot[index]}, "
            expression = head + expression.replace("(", ", ", 1)
        for s in {program.values[v].storage: None for v in call.outputs if v >= 0}:
            for v in self.of_storage[s]:  # views of an older instance
                self.defined.pop(v, None)
        left_out = call.optional if lean else ()
        kept = [
            (p, v)
            for p, v in enumerate(call.outputs)
            if v >= 0 and v in outlive and p not in left_out
        ]
        if not kept:
            self.lines.append(f"    {expression}")
        elif not call.is_tuple:
            self.lines.append(f"    v{kept[0][1]} = {expression}")
        else:
            self.lines.append(f"    t = {expression}")
            self.lines += [f"    v{v} = t[{position}]" for position, v in kept]
            self.lines.append("    del t")
        self.defined.update(dict.fromkeys(v for _, v in kept))
        self._free(self.frees[k])

    def _free(self, storages: list[int]) -> None:
        dead = [v for s in storages for v in self.of_storage[s] if v in self.defined]
        dead = [v for v in dead if v not in self.resident_set]
        for v in dead:
            del self.defined[v]
        if dead:
            self.lines.append(f"    del {', '.join(f'v{v}' for v in dead)}")

    def _ensure(self, v: int) -> None:
        """Make value `v` a local variable, if it is none: it is a view of something that is one."""
        if v in self.defined:
            return
        program = self.program
        call = program.calls[program.values[v].call]
        assert call.is_view, f"{call.name} has not run"
        for source in refs((call.args, call.kwargs)):
            self._ensure(source)
        expression = self._expression(call.target, call.args, call.kwargs)
        if not call.is_tuple:
            self.lines.append(f"    v{v} = {expression}")
        else:
            self.lines.append(f"    v{v} = {expression}[{program.values[v].position}]")
        self.defined[v] = None

    def _expression(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        parts = [self._text(arg) for arg in args]
        parts += [f"{key}={self._text(arg)}" for key, arg in kwargs.items()]
        return f"{self._bind(target, 'f')}({', '.join(parts)})"

    def _text(self, arg: Any) -> str:
        if isinstance(arg, Ref):
            self.mentioned[arg.value] = None
            return f"v{arg.value}"
        if isinstance(arg, VaryingSize):
            return f"sizes[{self.sizes.setdefault(arg, len(self.sizes))}]"
        if isinstance(arg, list):
            return f"[{', '.join(self._text(item) for item in arg)}]"
        if isinstance(arg, tuple):
            return f"({''.join(self._text(item) + ', ' for item in arg)})"
        plain = arg is None or isinstance(arg, bool | int | str)
        if plain or (isinstance(arg, float) and math.isfinite(arg)):
            return repr(arg)
        return self._bind(arg, "k")

    def _bind(self, thing: Any, prefix: str) -> str:
        if id(thing) not in self.bound:
            self.bound[id(thing)] = f"{prefix}{len(self.bound)}"
            self.names[self.bound[id(thing)]] = thing
        return self.bound[id(thing)]

    def _compile(self, name: str, parameters: str) -> Half:
        source = "\n".join([f"def {name}({parameters}):", *self.lines, ""])
        self.lines = []
        space = dict(self.names)
        exec(compile(source, f"<schedule {name}>", "exec"), space)
        return Half(source, space[name])
