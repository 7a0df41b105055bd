"""Dynamo's settings for a piece of work, and what it says of graphs that it broke."""

from __future__ import annotations

import functools
import inspect

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.dynamo_settings import (  # noqa: E402
    at_limit,
    break_at_packed_sequences,
    changes_python,
    compiled_alone,
    dynamo_settings,
    graph_breaks,
    last_graph_break,
    last_trace,
    trace_settings,
    was_asked_for,
)
from torch import nn  # noqa: E402


def test_settings_are_taken_back():
    """Also those of a name that this torch does not have are no fault."""
    before = torch._dynamo.config.allow_rnn
    with dynamo_settings({"allow_rnn": not before, "no_such_setting": 1}):
        assert torch._dynamo.config.allow_rnn is not before
    assert torch._dynamo.config.allow_rnn is before


def test_the_newest_broken_graph_is_named():

    def broken(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    for _ in range(2):  # the same reason again, too
        torch._dynamo.reset()
        before = graph_breaks()
        torch.compile(broken, backend="eager")(torch.ones(2))
        assert "graph_break" in last_graph_break(before)
        assert last_graph_break(graph_breaks()) == ""
    torch._dynamo.reset()


def test_dynamo_can_be_told_to_guard_modules():
    """A hook registered later makes it trace again."""
    net, graphs = torch.nn.Linear(1, 1), []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(lambda x: net(x), backend=backend)
    x = torch.ones(1)
    with dynamo_settings({"skip_nnmodule_hook_guards": False}):
        before = step(x)
        net.register_forward_hook(lambda module, given, out: out + 1)
        assert torch.equal(step(x), before + 1)
    assert len(graphs) == 2
    torch._dynamo.reset()


@pytest.mark.slow
def test_functions_with_a_method_in_common_are_traced_each_by_itself():
    """Up to the limit each, where torch counts so; else the method is said to be at its limit."""

    class Breaks(torch.nn.Module):
        def forward(self, x):
            x = x + 1
            torch._dynamo.graph_break()
            return x * 2

    def traced(compiles):
        graphs = []

        def backend(graph, _):
            graphs.append(graph)
            return graph.forward

        model = Breaks()

        def run(x):
            return model(x)

        run.__code__ = run.__code__.replace()
        compiled = compiles(run, backend, None)
        compiled(torch.ones(2))
        return len(graphs), at_limit([Breaks.forward.__code__], compiled)

    def together(function, backend, dynamic):
        return torch.compile(function, backend=backend, dynamic=dynamic)

    alone = "isolate_recompiles" in inspect.signature(torch.compile).parameters
    with dynamo_settings({"recompile_limit": 2}):
        for compiles in (compiled_alone, together):
            torch._dynamo.reset()
            found = [traced(compiles) for _ in range(3)]
            if alone and compiles is compiled_alone:
                assert found == [(2, [])] * 3
            else:
                assert found[0] == (2, [])
                assert found[2] == (0, [Breaks.forward.__code__])
    torch._dynamo.reset()


def test_a_graph_is_broken_at_packed_sequences():
    """Where torch does not do so by itself, tracing them fails."""

    def padded(x):
        packed = nn.utils.rnn.PackedSequence(x * 2, torch.tensor([2, 1]))
        return nn.utils.rnn.pad_packed_sequence(packed)[0] + 1

    torch._dynamo.reset()
    break_at_packed_sequences()
    before, x = graph_breaks(), torch.ones(3, 4)
    assert torch.equal(torch.compile(padded, backend="eager")(x), padded(x))
    assert graph_breaks() != before
    torch._dynamo.reset()


def test_settings_of_traces_are_there_while_dynamo_traces_and_not_else():
    def looked_up():
        return torch._dynamo.config.allow_rnn

    before, seen = looked_up(), []

    def backend(graph, _):
        seen.append(looked_up())
        return graph.forward

    torch._dynamo.reset()
    step = torch.compile(lambda x: x + 1, backend=backend)
    with trace_settings({"allow_rnn": not before, "no_such_setting": 1}):
        for _ in range(2):
            step(torch.ones(2))
    step(torch.ones(2).double())
    assert seen == [not before, before]
    assert looked_up() is before
    torch._dynamo.reset()


def test_this_torch_sets_them_only_there():
    before = torch._dynamo.config.allow_rnn
    with trace_settings({"allow_rnn": not before}):
        assert torch._dynamo.config.allow_rnn is before


def test_the_last_trace_of_a_function_is_known():
    found = []

    def backend(graph, _):
        found.append(last_trace())
        return graph.forward

    def scaled(x, number):
        return x * number

    torch._dynamo.reset()
    step = torch.compile(scaled, backend=backend, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for number in range(3):
            step(torch.ones(2), number)
    torch._dynamo.reset()
    assert found == [None, scaled.__code__]


def test_code_that_changes_python_is_known():
    """An attribute of an object that was there, but not of one that the code makes."""
    seen = []

    def backend(graph, _):
        seen.append(changes_python())
        return graph.forward

    class Held:
        value = None

    held = Held()

    def changes(x):
        held.value = x
        return x + 1

    def makes(x):
        made = Held()
        made.value = [x]
        return made.value[0] + 1

    for function in (changes, makes):
        torch._dynamo.reset()
        torch.compile(function, backend=backend)(torch.ones(2))
    torch._dynamo.reset()
    assert seen == [True, False]
    assert changes_python() is False


def test_a_backend_is_asked_for_where_something_is_compiled_for_it():
    """Before anything is traced."""
    assert not was_asked_for("no such backend")
    torch.compile(nn.Linear(1, 1), backend="eager")
    assert was_asked_for("eager")


def test_functions_that_are_settings_are_not_written_down(caplog):
    """torch before 2.13 told by a traceback, at each compilation, that it cannot sort them."""
    functions = {functools.cache(print), functools.cache(len)}
    torch._dynamo.reset()
    with dynamo_settings({"ignore_logging_functions": functions}):
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert torch._dynamo.config.ignore_logging_functions == functions
    assert not [row for row in caplog.records if row.levelname == "ERROR"]
