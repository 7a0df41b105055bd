"""A program as a `schedsim.Graph`: its calls are the ops, its storages the tensors."""

from __future__ import annotations

from schedsim import Graph, Op

from .program import Call, Program


def op_calls(program: Program) -> list[int]:
    """The calls that are ops of the graph: all but the views, in order."""
    return [i for i, call in enumerate(program.calls) if not call.is_view]


def tensor_names(program: Program) -> dict[int, str]:
    """Storage -> name of its tensor, for all that are not static; named after their producers."""
    names: dict[int, str] = {}
    for position, value in program.inputs.items():
        names.setdefault(program.values[value].storage, f"input{position}")
    for call in program.calls:
        if call.is_view:
            continue
        written = list(dict.fromkeys(program.values[v].storage for v in call.outputs if v >= 0))
        for i, storage in enumerate(written):
            names[storage] = call.name if len(written) == 1 else f"{call.name}:{i}"
    return names


def token_name(program: Program, call: int) -> str:
    """Name of the empty tensor that says that `call` has run."""
    return f"{program.calls[call].name}:ran"


def result_storages(program: Program) -> list[int]:
    """Storages that live to the end: gradients; inputs, which the caller holds; and what somebody
    holds of outputs and of their gradients."""
    kept = [*program.inputs.values(), *program.held, *program.gradients.values()]
    kept += program.input_gradients.values()
    found = dict.fromkeys(program.values[v].storage for v in kept)
    return [s for s in found if program.storages[s].kind != "static"]


def to_graph(program: Program, name: str, static_bytes: int) -> Graph:
    """The graph of `program`, times and workspaces zero; O(size of the program).

    Parameters
    ----------
    static_bytes
        Parameters, buffers and whatever else is always resident; the program's constants are added.
    """
    names = tensor_names(program)
    awaited = dict.fromkeys(token for call in program.calls for token in call.tokens)
    ops = []
    for i in op_calls(program):
        call = program.calls[i]
        values = [v for v in call.outputs if v >= 0]
        writes = {names[s]: program.storages[s].size_bytes for s in _storages(program, values)}
        if i in awaited:
            writes[token_name(program, i)] = 0
        lazy = [call.outputs[position] for position in call.optional]
        reads = [names[s] for s in program.base_reads(call)]
        reads += [token_name(program, token) for token in call.tokens]
        ops.append(
            Op(
                name=call.name,
                phase=call.phase,
                reads=tuple(dict.fromkeys(reads)),
                writes=writes,
                optional=tuple(names[s] for s in _storages(program, lazy)),
                in_place=_in_place(program, call, names),
                once=call.once,
            )
        )
    inputs = {
        names[storage]: program.storages[storage].size_bytes
        for storage in _storages(program, list(program.inputs.values()))
    }
    constants = {
        program.values[v].storage: program.storages[program.values[v].storage].size_bytes
        for v in program.constants
    }
    return Graph(
        name=name,
        ops=tuple(ops),
        inputs=inputs,
        static_bytes=static_bytes + sum(constants.values()),
        results=tuple(names[s] for s in result_storages(program)),
    )


def _in_place(program: Program, call: Call, names: dict[int, str]) -> dict[str, str]:
    if call.takes_over < 0:
        return {}
    values = program.values
    return {names[values[call.outputs[call.over]].storage]: names[values[call.takes_over].storage]}


def _storages(program: Program, values: list[int]) -> list[int]:
    return list(dict.fromkeys(program.values[v].storage for v in values))
