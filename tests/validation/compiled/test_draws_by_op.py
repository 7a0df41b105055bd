"""Groups that inductor does not compile draw what follows from their seeds."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fused_steps import dropped, left_by  # noqa: E402
from schedsim.validation.capture.program import (  # noqa: E402
    Call,
    Program,
    Ref,
    Storage,
    Value,
)
from schedsim.validation.compiled.group import (  # noqa: E402
    CompileWarning,
    FusedGroup,
    Groups,
)
from schedsim.validation.torch_private import inductor_calls as inductor  # noqa: E402

aten = torch.ops.aten
CPU = torch.device("cpu")


def noise():
    """A group that draws from a seed, and scales what it drew."""
    program = Program(storages=[Storage(8, "input"), *(Storage(96, "computed") for _ in range(2))])
    program.values = [
        Value(0, (), (), torch.int64, CPU),
        *(Value(s, (4, 6), (6, 1), torch.float32, CPU) for s in (1, 2)),
    ]
    program.calls = [
        Call("draw", inductor.random_op(), ([4, 6], Ref(0), "randn"), {}, outputs=[1]),
        Call("scale", aten.mul.Tensor, (Ref(1), 2.0), {}, outputs=[2]),
    ]
    group, _ = Groups().make(program, [0, 1], [2])
    return group


def by_generator(function, examples, mode):
    """In the place of inductor's code for a draw: the seed sets a generator."""

    def run(arguments):
        [seed] = arguments
        arguments.clear()
        return (torch.randn(4, 6, generator=torch.Generator().manual_seed(int(seed))),)

    return run


def test_numbers_follow_from_the_seed_alone(monkeypatch):
    monkeypatch.setattr(inductor, "compile_function", by_generator)
    group = noise()
    group.run_by_op()
    state = torch.get_rng_state()
    seed = torch.tensor(3)
    first, again, other = group(seed), group(seed), group(torch.tensor(4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.slow
def test_where_a_draw_is_not_compiled_nothing_of_the_part_is(monkeypatch):
    """Other groups would make other numbers of its seed."""

    def fails(self, function):
        if any(call.target is inductor.random_op() for call in self.calls):
            raise RuntimeError("no draws here")
        return lambda arguments: function(*arguments)

    def refuses(function, examples, mode):
        raise RuntimeError("no draws here")

    monkeypatch.setattr(FusedGroup, "compiled_as", fails)
    monkeypatch.setattr(inductor, "compile_function", refuses)
    torch._dynamo.reset()
    model, inputs, loss = dropped(2)
    module = torch.compile(model, backend="schedsim", options={"budget": "100%", "compile": True})
    with pytest.warns(CompileWarning, match="step runs uncompiled: RuntimeError: no draws here"):
        found = left_by(lambda x, t: loss(module(x), t), model, inputs)
    expected = left_by(lambda x, t: loss(model(x), t), model, inputs)
    torch.testing.assert_close(found, expected)
