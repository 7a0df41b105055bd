"""Generated code for others to run: a template with data as literals."""

from __future__ import annotations

import ast
from typing import Any


def fill(template: str, **values: Any) -> str:
    """`template` with each ``{field}`` replaced by the Python literal of its value.

    A name from a workload always becomes a literal, never code, whatever it contains: no template
    puts a value into a docstring or a comment.

    Raises
    ------
    TypeError
        A value has no literal.

    Examples
    --------
    >>> fill("WORKLOAD = {name}", name='two "quotes"')
    'WORKLOAD = \\'two "quotes"\\''
    """
    return template.format(**{field: _literal(value) for field, value in values.items()})


def _literal(value: Any) -> str:
    text = repr(value)
    try:
        same = bool(ast.literal_eval(text) == value)
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise TypeError(f"{text} is not a literal")
    return text
