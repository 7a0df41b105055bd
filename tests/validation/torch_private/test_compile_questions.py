"""Code that asks whether it is compiled is given an answer of its own while Dynamo traces."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.compile_questions import answering  # noqa: E402

SOURCES = {
    "made_up_questions": """
import torch

def asked():
    return torch.compiler.is_compiling()
""",
    "made_up_asker": """
from made_up_questions import asked

def two(x):
    return x + asked()
""",
}


@pytest.fixture
def modules(monkeypatch):
    """A module that passes the question on, and one that asks it."""
    found = []
    for name, source in SOURCES.items():
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(source, f"{name}.py", "exec"), vars(module))
        found.append(module)
    return found


def traced(function):
    """What it gives where Dynamo traces it, whose graph runs as it is."""
    torch._dynamo.reset()
    return float(torch.compile(function, backend="eager")(torch.zeros(())))


def test_a_module_is_told_no_alone_and_only_in_the_block(modules):
    [asker] = modules[1:]
    assert traced(asker.two) == 1
    heard = []

    def answer(name):
        heard.append(name)
        return False if name == "made_up_asker" else None

    with answering(answer):
        assert traced(asker.two) == 0
        assert traced(lambda x: x + torch.compiler.is_compiling()) == 1
    assert heard[:2] == ["made_up_questions", "made_up_asker"]
    assert traced(asker.two) == 1
    torch._dynamo.reset()


def test_a_graph_that_was_traced_so_is_used_again(modules):
    """The answer is no part of what Dynamo guards."""
    [asker] = modules[1:]
    torch._dynamo.reset()
    compiled = torch.compile(asker.two, backend="eager")
    with answering(lambda _: False):
        assert compiled(torch.zeros(())) == 0
    assert compiled(torch.zeros(())) == 0
    torch._dynamo.reset()
