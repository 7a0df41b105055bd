"""The compiled check of a pickle's opcodes, before anything is made of them.

CPython's unpickler follows a tuple in a tuple in a tuple on the C stack, and takes memory for the
largest number in its memo: a few bytes end the process. Files of containers, numbers and text need
neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.cached import njit

SOUND, FOREIGN, NESTED, BROKEN = 0, 1, 2, 3
"""Found in a pickle: nothing wrong; an opcode that plain values do not need; tuples nested deeper
than `MOST_DEPTH`; an end, or a lack of values, where there should be more."""

WRONG = {
    FOREIGN: "it holds more than containers, numbers and text",
    NESTED: "its tuples are nested without end",
    BROKEN: "it is broken off",
}

MOST_DEPTH = 100

# What an opcode is followed by: a number of bytes; text up to the end of the line; a length of 1, 4
# or 8 bytes and as many bytes.
_LINE, _COUNTED_1, _COUNTED_4, _COUNTED_8 = 100, 101, 104, 108
# What an opcode does to the stack.
_PUSH, _NOTHING, _MARK, _POP, _POP_MARK, _DUPLICATE, _POP_2, _COLLECT = range(1, 9)
_TUPLE, _TUPLE_1, _TUPLE_2, _TUPLE_3, _PUT, _GET, _MEMOIZE, _END, _NAMES = range(9, 18)

_OPCODES = (
    (b"])}N\x88\x89", 0, _PUSH),
    (b"K", 1, _PUSH),
    (b"M", 2, _PUSH),
    (b"J", 4, _PUSH),
    (b"G", 8, _PUSH),
    (b"ILFSV", _LINE, _PUSH),
    (b"\x8aU\x8cC", _COUNTED_1, _PUSH),
    (b"\x8bTXB", _COUNTED_4, _PUSH),
    (b"\x8d\x8e", _COUNTED_8, _PUSH),
    (b"\x80", 1, _NOTHING),
    (b"\x95", 8, _NOTHING),
    (b"(", 0, _MARK),
    (b"0a", 0, _POP),
    (b"1eu", 0, _POP_MARK),
    (b"2", 0, _DUPLICATE),
    (b"s", 0, _POP_2),
    (b"ld", 0, _COLLECT),
    (b"t", 0, _TUPLE),
    (b"\x85", 0, _TUPLE_1),
    (b"\x86", 0, _TUPLE_2),
    (b"\x87", 0, _TUPLE_3),
    (b"q", 1, _PUT),
    (b"r", 4, _PUT),
    (b"p", _LINE, _PUT),
    (b"h", 1, _GET),
    (b"j", 4, _GET),
    (b"g", _LINE, _GET),
    (b"\x94", 0, _MEMOIZE),
    (b".", 0, _END),
    (b"ci\x93PQ", 0, _NAMES),  # the unpickler refuses these itself, and says what they name
)


def _table() -> NDArray[np.int64]:
    table = np.zeros((256, 2), np.int64)
    for codes, follows, does in _OPCODES:
        for code in codes:
            table[code] = follows, does
    return table


def check_opcodes(data: bytes) -> int:
    """What is wrong with a pickle of plain values: `SOUND`, `FOREIGN`, `NESTED` or `BROKEN`.

    Examples
    --------
    >>> import pickle
    >>> check_opcodes(pickle.dumps({"a": [1, (2.5, None)]})) == SOUND
    True
    >>> check_opcodes(pickle.dumps({1, 2})) == FOREIGN
    True
    """
    return int(_checked(np.frombuffer(data, np.uint8), _table()))


@njit(cache=True)
def _little(data: NDArray[np.uint8], at: int, size: int) -> Any:
    """The number in `size` bytes; -1 if it is beyond all lengths."""
    number: Any = 0
    for k in range(size):
        if k >= 7 and data[at + k]:
            return -1
        if k < 7:
            number |= np.int64(data[at + k]) << (8 * k)
    return number


@njit(cache=True)
def _checked(data: NDArray[np.uint8], table: NDArray[np.int64]) -> int:
    """O(n) for n bytes. The stack and the memo hold how deep tuples are nested in each value."""
    n = data.size
    stack = np.zeros(n + 1, np.int8)
    memo = np.full(n + 1, -1, np.int8)
    marks = np.zeros(n + 1, np.int64)
    top = num_marks = num_memo = num_ops = at = 0
    while at < n:
        num_ops += 1
        follows, does = table[data[at]]
        at += 1
        number: Any = 0
        if follows == _LINE:
            start = at
            while at < n and data[at] != 10:
                if does in (_PUT, _GET):
                    if not 48 <= data[at] <= 57 or number > n:
                        return BROKEN
                    number = 10 * number + np.int64(data[at]) - 48
                at += 1
            if at == start:
                return BROKEN
            at += 1
        else:
            size = follows - 100 if follows > 100 else follows
            if at + size > n:
                return BROKEN
            number = _little(data, at, size)
            at += size
            if follows > 100:
                if number < 0 or number > n - at:
                    return BROKEN
                at += number
        if at > n:
            return BROKEN
        floor = marks[num_marks - 1] if num_marks else 0
        depth = 0
        if does == _PUSH:
            stack[top] = 0
            top += 1
        elif does == _NOTHING:
            pass
        elif does == _MARK:
            marks[num_marks] = top
            num_marks += 1
        elif does == _POP and num_marks and top == floor and data[at - 1] == 48:
            num_marks -= 1
        elif does in (_POP, _POP_2):
            top -= does == _POP_2
            top -= 1
            if top < floor:
                return BROKEN
        elif does in (_POP_MARK, _COLLECT, _TUPLE):
            if not num_marks:
                return BROKEN
            for k in range(floor, top):
                depth = max(depth, stack[k])
            num_marks -= 1
            top = floor
            if does != _POP_MARK:
                stack[top] = depth + 1 if does == _TUPLE else 0
                top += 1
        elif does in (_TUPLE_1, _TUPLE_2, _TUPLE_3):
            taken = does - _TUPLE
            if top - taken < floor:
                return BROKEN
            for k in range(top - taken, top):
                depth = max(depth, stack[k])
            top -= taken
            stack[top] = depth + 1
            top += 1
        elif does in (_DUPLICATE, _PUT, _MEMOIZE):
            if top <= floor:
                return BROKEN
            if does == _DUPLICATE:
                stack[top] = stack[top - 1]
                top += 1
            else:
                if does == _MEMOIZE:
                    number = num_memo
                if not 0 <= number <= num_ops:
                    return BROKEN
                num_memo += memo[number] < 0
                memo[number] = stack[top - 1]
        elif does == _GET:
            if not 0 <= number <= n or memo[number] < 0:
                return BROKEN
            stack[top] = memo[number]
            top += 1
        elif does in (_END, _NAMES):
            return SOUND
        else:
            return FOREIGN
        if top and stack[top - 1] > MOST_DEPTH:
            return NESTED
    return BROKEN
