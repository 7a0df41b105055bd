"""The search behind `chain_optimum`, from the end of the step backwards, over what must be there.

A state is a place in a schedule, seen from behind: which backwards stand behind the place, and
which outputs and residuals must be in memory there because a run behind it reads them. Nothing
needless is ever in a state, so that there are far fewer states than sets that memory may hold. A
step of the search puts one run in front: the backward (or the loss) before, or a forward that makes
something demanded.

A* needs a bound on what is still in front of the place. Every forward runs before the loss.
Besides, look at the run of any backward q in front, or of the loss: of what is demanded behind that
run, and of the stages between, some outputs may be held in the room beside the run; every other
stage runs again behind it, and then its input is held, or the stage before runs again as well. At a
price per byte that is a program over the stages, solved in one pass for all q, and the room is
free: a Lagrangian bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from schedsim.dataflow.chain import Chain
from schedsim.kernels.compiled import kernel, run
from schedsim.kernels.record import Codes, Flags, Ints, Reals, Record, ShortInts, Table

MAX_STAGES = 62
"""The most stages of a chain: a state is two words of 64 bits, with a bit for each stage."""

EXHAUSTED, FOUND, FULL, PAUSED = range(4)
"""Why a search returned: no state left, start reached, no room for states, expansions made."""

NUM, HEAP, EXPANDED, GOAL, LACKING = range(5)
"""Places in `States.counts`."""

_NUM_PRICES = 24
_BYTES_A_STATE = 90

# Times that are multiples of some unit have costs that are too, so that bounds may be rounded up.
_MOST_UNITS = 200_000


@dataclass(frozen=True, eq=False)
class ChainItems(Record):
    """A chain within a budget, as the kernels read it; stage k makes output k and residual k.

    Attributes
    ----------
    forward_s, output_bytes, residual_bytes, plain_bytes, saving_bytes : (L,)
        The last two are the bytes of a forward run, all that it reads, writes and works in, without
        and with its residual; the chain's input is in neither sum.
    backward_s, backward_bytes, room_bytes : (L + 1,)
        The last entry is the loss. The room is what the budget leaves during forwards in front of
        that backward's run, beside the gradient that is alive there in any case.
    above_s : (L + 2,)
        Time of all backwards from this one on, with the loss.
    prices : (P,)
        Seconds per byte, ascending.
    unit_s
        A unit of which all times are multiples; 0 where no such unit is known.
    """

    forward_s: Reals
    backward_s: Reals
    above_s: Reals
    output_bytes: Ints
    residual_bytes: Ints
    plain_bytes: Ints
    saving_bytes: Ints
    backward_bytes: Ints
    room_bytes: Ints
    prices: Reals
    unit_s: float

    only_read = True

    @classmethod
    def of(cls, chain: Chain, budget_bytes: int) -> ChainItems:
        """The items of `chain`, of at most `MAX_STAGES` stages; O(L).

        No schedule needs more bytes than the items say. Some schedules may need more in truth:
        gradients of parameters are charged only to the run that makes them, as they may be evicted
        and recomputed; and a forward that takes less by keeping its residual is charged as if it
        did not keep it, because a needless backward may read the residual.
        """
        num, stages = chain.num_stages, chain.stages
        x = chain.activation_bytes().copy()
        outside_bytes = chain.static_bytes + int(x[0])
        x[0] = 0
        beside = np.array(chain.beside_bytes, np.int64)
        forward_s = np.array([stage.forward_s for stage in stages], np.float64)
        backward_s = np.array([*(stage.backward_s for stage in stages), chain.loss_s], np.float64)
        residual = np.array([s.saved_bytes - s.output_bytes for s in stages], np.int64)
        plain = np.array([s.forward_workspace_bytes for s in stages], np.int64) - beside
        saving = [
            s.forward_workspace_bytes
            if s.saving_workspace_bytes is None
            else s.saving_workspace_bytes
            for s in stages
        ]
        backward = [*(s.backward_workspace_bytes for s in stages), chain.loss_workspace_bytes]
        need = np.array(backward, np.int64)
        need[:num] += x[:-1] + x[1:] + residual - beside
        need[1:num] += x[1:-1]  # the gradient of its input, which the first stage does not make
        need[num] += 2 * x[num]
        room = np.full(num + 1, min(budget_bytes, 2**60) - outside_bytes, np.int64)
        room[:num] -= x[1:]
        total_s = math.fsum([*forward_s, *backward_s])
        plain += x[:-1] + x[1:]
        keeping = x[:-1] + x[1:] + residual + np.array(saving, np.int64) - beside
        plain = np.where(residual > 0, np.minimum(plain, keeping), plain)
        return cls(
            forward_s=forward_s,
            backward_s=backward_s,
            above_s=np.append(np.cumsum(backward_s[::-1])[::-1], 0.0),
            output_bytes=x[1:].copy(),
            residual_bytes=residual,
            plain_bytes=plain,
            saving_bytes=keeping,
            backward_bytes=need,
            room_bytes=room,
            prices=_prices(forward_s, x[1:], residual),
            unit_s=time_unit_s([*forward_s.tolist(), *backward_s.tolist()], total_s),
        )

    def without_times(self) -> ChainItems:
        """The same items with all times zero, to ask whether there is any schedule at all."""
        zero = np.zeros_like(self.forward_s)
        return replace(
            self,
            forward_s=zero,
            backward_s=np.zeros_like(self.backward_s),
            above_s=np.zeros_like(self.above_s),
            prices=np.zeros(1),
            unit_s=0.0,
        )


def _prices(forward_s: Reals, output: Ints, residual: Ints) -> Reals:
    """Prices per byte, from below the least cost of a stage to all costs by the least output."""
    bytes_of = np.maximum(1, output + residual)
    rates = (forward_s / bytes_of)[forward_s > 0]
    if not rates.size:
        return np.zeros(1)
    low = float(rates.min()) / 2
    high = float(forward_s.sum()) / max(1, int(output.min()))
    return np.concatenate(([0.0], np.geomspace(low, max(2 * low, high), _NUM_PRICES - 1)))


def time_unit_s(times_s: list[float], total_s: float) -> float:
    """A time of which all of `times_s` are multiples, as far as floats hold; 0.0 for none.

    Examples
    --------
    >>> round(time_unit_s([0.001, 0.0025, 0.0], 0.0035), 9), time_unit_s([1.0, 2**0.5], 3.0)
    (0.0005, 0.0)
    """
    some = sorted({time for time in times_s if time > 0})
    if not some:
        return 0.0
    parts = [Fraction(time / some[0]).limit_denominator(1000) for time in some]
    common = math.lcm(*(part.denominator for part in parts))
    numbers = [round(time / some[0] * common) for time in some]
    unit_s = some[0] / common * math.gcd(*numbers)
    if total_s > _MOST_UNITS * unit_s:
        return 0.0
    exact = all(abs(time - round(time / unit_s) * unit_s) <= 1e-11 * time for time in some)
    return unit_s if exact else 0.0


@dataclass(frozen=True, eq=False)
class States(Record):
    """All states seen, by number; a heap of the open ones; a hash table that finds each of them.

    Attributes
    ----------
    outputs, residuals : (capacity,)
        What is demanded, one bit for each stage.
    position : (capacity,)
        Number of backwards behind the place, the loss counted as one more.
    spent_s, rest_s : (capacity,)
        Time behind the place; a bound on the time in front of it.
    parent, move : (capacity,)
        The state behind, and the run between the two: a stage, or L for the backward or loss
        before.
    price : (capacity,)
        Number of the price that proves `rest_s`.
    closed : (capacity,)
    slots : (power of two,)
        Number of the state by hash; -1 for none.
    heap_s, heap_state : (2 * capacity,)
    words : (3, 64)
        Random words for outputs, residuals and positions: the hash of a state is the sum, without
        carry, of the words that belong to it.
    counts : (5,)
    """

    outputs: Ints
    residuals: Ints
    position: Codes
    spent_s: Reals
    rest_s: Reals
    parent: ShortInts
    move: Codes
    price: Codes
    closed: Flags
    slots: ShortInts
    heap_s: Reals
    heap_state: ShortInts
    random_words: Table
    counts: Ints

    @classmethod
    def of(cls, capacity: int) -> States:
        """Arrays with room for `capacity` states, and no state in them."""
        rng = np.random.default_rng(0)
        size = 1 << max(4, (2 * capacity - 1).bit_length())
        return cls(
            outputs=np.zeros(capacity, np.int64),
            residuals=np.zeros(capacity, np.int64),
            position=np.zeros(capacity, np.int8),
            spent_s=np.zeros(capacity),
            rest_s=np.zeros(capacity),
            parent=np.full(capacity, -1, np.int32),
            move=np.zeros(capacity, np.int8),
            price=np.zeros(capacity, np.int8),
            closed=np.zeros(capacity, np.bool_),
            slots=np.full(size, -1, np.int32),
            heap_s=np.zeros(2 * capacity),
            heap_state=np.zeros(2 * capacity, np.int32),
            random_words=rng.integers(0, 2**62, (3, 64)),
            counts=np.array([0, 0, 0, -1, 2**62], np.int64),
        )

    @property
    def capacity(self) -> int:
        """How many states there is room for."""
        return int(self.outputs.size)

    def larger(self, capacity: int) -> States:
        """The same states in arrays with room for `capacity` of them."""
        num, new = int(self.counts[NUM]), States.of(capacity)
        columns = ("outputs", "residuals", "position", "spent_s", "rest_s", "parent", "move")
        for name in (*columns, "price", "closed"):
            getattr(new, name)[:num] = getattr(self, name)[:num]
        in_heap = int(self.counts[HEAP])
        new.heap_s[:in_heap] = self.heap_s[:in_heap]
        new.heap_state[:in_heap] = self.heap_state[:in_heap]
        new.counts[:] = self.counts
        run(hash_all, int(new.counts[NUM]), new)
        return new


def max_states(max_bytes: int) -> int:
    """The number of states for which `max_bytes` have room."""
    return max(1, max_bytes // _BYTES_A_STATE)


@kernel
def slot_of(states: States, outputs: int, residuals: int, position: int) -> int:
    """The place of the state in the hash table, or the free place where it would stand."""
    words, slots = states.random_words, states.slots
    mixed = words[2, position]
    k, left = 0, outputs
    while left:
        if left & 1:
            mixed ^= words[0, k]
            if (residuals >> k) & 1:
                mixed ^= words[1, k]
        left >>= 1
        k += 1
    mask = slots.size - 1
    at = mixed & mask
    while True:
        found = slots[at]
        if found < 0 or (
            states.outputs[found] == outputs
            and states.residuals[found] == residuals
            and states.position[found] == position
        ):
            return int(at)
        at = (at + 1) & mask


@kernel
def hash_all(states: States) -> int:
    """Enter all states into the empty hash table."""
    for state in range(states.counts[NUM]):
        at = slot_of(states, states.outputs[state], states.residuals[state], states.position[state])
        states.slots[at] = state
    return int(states.counts[NUM])


@kernel
def at_price(items: ChainItems, outputs: int, residuals: int, position: int, price: float) -> float:
    """The best bound at one price on what runs again behind a run in front of the place; O(L)."""
    best = 0.0
    unread, read = 0.0, 0.0  # cost so far, where a rerun of the next stage reads the output
    for k in range(len(items.forward_s)):
        again_s = items.forward_s[k]
        output, residual = items.output_bytes[k], items.residual_bytes[k]
        # 2: output and residual are demanded; 1: the output; 0: none.
        demand = 0
        if k >= position or (residuals >> k) & 1:
            demand = 2 if residual > 0 else 1
        elif (outputs >> k) & 1:
            demand = 1
        rerun = again_s + read
        # At the run of the backward behind this stage, or of the loss, the output is alive in any
        # case.
        if k + 1 >= position:
            here = unread
            if demand == 2:
                here = price * residual + unread
                if rerun < here:
                    here = rerun
            here -= price * (items.room_bytes[k + 1] - items.backward_bytes[k + 1])
            if here > best:
                best = here
        read = unread + price * (output + residual if demand == 2 else output)
        if rerun < read:
            read = rerun
        if demand:
            unread = read
    return best


@kernel
def rest_of(items: ChainItems, states: States, state: int, price: int) -> int:
    """Store the bound of a state and the price that proves it, the best one near `price`."""
    outputs, residuals = states.outputs[state], states.residuals[state]
    position = int(states.position[state])
    num = len(items.forward_s)
    base = 0.0
    if position == num + 1:
        # The loss is behind: what is demanded runs, and all stages before it.
        k = 0
        while outputs >> k:
            base += items.forward_s[k]
            k += 1
        states.rest_s[state], states.price[state] = base, price
        return price
    for k in range(num):
        base += items.forward_s[k]
    base += items.above_s[position]
    best = at_price(items, outputs, residuals, position, items.prices[price])
    given = price
    for step in (-1, 1):
        if price != given:  # lower prices are better: the next higher one is known to be worse
            break
        while 0 <= price + step < len(items.prices):
            other = at_price(items, outputs, residuals, position, items.prices[price + step])
            if other <= best:
                break
            best = other
            price += step
    if items.unit_s > 0:
        units = (base + best) / items.unit_s
        best = math.ceil(units - 1e-6 - 1e-9 * units) * items.unit_s - base
    states.rest_s[state], states.price[state] = base + max(0.0, best), price
    return price


@kernel
def is_before(states: States, one_s: float, one: int, other_s: float, other: int) -> bool:
    """Whether a state is expanded before another: by lower bound, then by nearness to the end."""
    if one_s != other_s:
        return one_s < other_s
    if states.position[one] != states.position[other]:
        return bool(states.position[one] > states.position[other])
    return bool(states.spent_s[one] > states.spent_s[other])


@kernel
def push(states: States, rank_s: float, state: int) -> int:
    """Put a state on the heap; returns the size of the heap."""
    heap_s, heap_state = states.heap_s, states.heap_state
    i = states.counts[HEAP]
    states.counts[HEAP] += 1
    while i > 0:
        above = (i - 1) >> 1
        if not is_before(states, rank_s, state, heap_s[above], heap_state[above]):
            break
        heap_s[i], heap_state[i] = heap_s[above], heap_state[above]
        i = above
    heap_s[i], heap_state[i] = rank_s, state
    return int(states.counts[HEAP])


@kernel
def pop(states: States) -> int:
    """Take the first state off the heap and return it."""
    heap_s, heap_state = states.heap_s, states.heap_state
    first = heap_state[0]
    states.counts[HEAP] -= 1
    size = states.counts[HEAP]
    last_s, last = heap_s[size], heap_state[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and is_before(
            states, heap_s[child + 1], heap_state[child + 1], heap_s[child], heap_state[child]
        ):
            child += 1
        if not is_before(states, heap_s[child], heap_state[child], last_s, last):
            break
        heap_s[i], heap_state[i] = heap_s[child], heap_state[child]
        i = child
    heap_s[i], heap_state[i] = last_s, last
    return int(first)


@kernel
def is_dominated(states: States, state: int) -> bool:
    """Whether another state that demands one item less was reached no later."""
    outputs, residuals = states.outputs[state], states.residuals[state]
    position, spent_s = int(states.position[state]), states.spent_s[state]
    k = 0
    while outputs >> k:
        bit = 1 << k
        if outputs & bit:
            less = states.slots[slot_of(states, outputs & ~bit, residuals & ~bit, position)]
            if less >= 0 and states.spent_s[less] <= spent_s:
                return True
            if residuals & bit:
                less = states.slots[slot_of(states, outputs, residuals & ~bit, position)]
                if less >= 0 and states.spent_s[less] <= spent_s:
                    return True
        k += 1
    return False


@kernel
def begin(items: ChainItems, states: States) -> int:
    """Enter the state at the end of the step, at which nothing is demanded."""
    states.counts[NUM] = 1
    states.parent[0] = -1
    states.slots[slot_of(states, 0, 0, 0)] = 0
    rest_of(items, states, 0, 0)
    return push(states, states.rest_s[0], 0)


@kernel
def expand(items: ChainItems, states: States, num_expansions: int, below_s: float) -> int:
    """Expand so many states, the most promising first; returns why the search stopped.

    States that cannot lead to less than `below_s` are dropped.
    """
    num, counts = len(items.forward_s), states.counts
    until = counts[EXPANDED] + num_expansions
    while counts[HEAP] > 0:
        if counts[EXPANDED] >= until:
            return PAUSED
        room = states.outputs.size - counts[NUM]
        if room < num + 2 or states.heap_s.size - counts[HEAP] < num + 2:
            return FULL
        rank_s = states.heap_s[0]
        state = pop(states)
        if states.closed[state] or rank_s > states.spent_s[state] + states.rest_s[state]:
            continue
        states.closed[state] = True
        outputs, residuals = states.outputs[state], states.residuals[state]
        position = int(states.position[state])
        if position == num + 1 and outputs == 0:
            counts[GOAL] = state
            return FOUND
        if is_dominated(states, state):
            continue
        counts[EXPANDED] += 1
        demanded = 0
        for k in range(num):
            if (outputs >> k) & 1:
                demanded += items.output_bytes[k]
                if (residuals >> k) & 1:
                    demanded += items.residual_bytes[k]
        for move in range(num + 1):
            if move < num:
                if not (outputs >> move) & 1:
                    continue
                bit, place = 1 << move, position
                others = demanded - items.output_bytes[move]
                own = items.plain_bytes[move]
                if residuals & bit:
                    others -= items.residual_bytes[move]
                    own = items.saving_bytes[move]
                new_outputs, new_residuals = outputs & ~bit, residuals & ~bit
                reads = move - 1
                room_bytes = items.room_bytes[max(0, position - 1)]
                cost_s = items.forward_s[move]
            elif position == num + 1:
                continue
            else:
                place, others = position + 1, demanded
                own = items.backward_bytes[position]
                new_outputs, new_residuals = outputs, residuals
                reads = position - 1
                room_bytes = items.room_bytes[position]
                cost_s = items.backward_s[position]
                if position < num:
                    new_outputs |= 1 << position
                    if items.residual_bytes[position] > 0:
                        new_residuals |= 1 << position
            if reads >= 0:
                if (new_outputs >> reads) & 1:
                    others -= items.output_bytes[reads]
                new_outputs |= 1 << reads
            if others + own > room_bytes:
                counts[LACKING] = min(counts[LACKING], others + own - room_bytes)
                continue
            spent_s = states.spent_s[state] + cost_s
            at = slot_of(states, new_outputs, new_residuals, place)
            found = states.slots[at]
            if found >= 0 and spent_s >= states.spent_s[found]:
                continue
            if found < 0:
                found = counts[NUM]
                states.outputs[found], states.residuals[found] = new_outputs, new_residuals
                states.position[found] = place
                rest_of(items, states, found, int(states.price[state]))
            if spent_s + states.rest_s[found] >= below_s:
                continue
            if found == counts[NUM]:
                counts[NUM] += 1
                states.slots[at] = found
            states.spent_s[found] = spent_s
            states.parent[found], states.move[found] = state, move
            states.closed[found] = False
            push(states, spent_s + states.rest_s[found], found)
    return EXHAUSTED


def runs_to(states: States, goal: int, num_stages: int) -> list[int]:
    """The runs of the schedule that begins with state `goal`, as indices of ops; O(runs)."""
    runs, state, backward = [], goal, num_stages
    while states.parent[state] >= 0:
        move = int(states.move[state])
        if move == num_stages:
            runs.append(2 * num_stages - backward)
            backward -= 1
        else:
            runs.append(move)
        state = int(states.parent[state])
    return runs
