"""The code of a part's schedules, and to which argument each gradient goes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402


@pytest.fixture
def part():
    """Of a step with two weights and an input with a gradient, one of the weights read twice."""
    torch._dynamo.reset()

    def step(x, first, second):
        return torch.tanh(torch.tanh(x @ first) @ second) @ first

    options = {"budget": 10**9, "check": "never"}
    compiled = torch.compile(step, backend="schedsim", options=options)
    given = [torch.randn(4, 8, requires_grad=True)]
    given += [torch.nn.Parameter(torch.randn(8, 8)) for _ in range(2)]
    compiled(*given).square().sum().backward()
    (found,) = session_of(options).parts
    yield found
    torch._dynamo.reset()


def test_each_schedule_has_code_of_its_own(part):
    assert part.code.num == len(part.schedules)
    first = part.code.halves(0)
    part.code.add([int(run) for run in part.schedules[0].bind(part.graph)])
    assert part.code.num == len(part.schedules) + 1
    again = part.code.halves(part.code.num - 1)
    assert again is not first
    assert again.carried == first.carried


@pytest.mark.slow
def test_gradients_go_to_the_arguments_that_they_are_of(part):
    """Those of parameters come first in the program, those of inputs behind."""
    program = part.program
    values = [*program.gradients.values(), *program.input_gradients.values()]
    found = [torch.full((), float(v)) for v in values]
    by_argument = part.code.by_argument(found)
    assert [int(it) for it in by_argument if it is not None] == [
        v for v in part._joint.gradients if v >= 0
    ]
    inputs = part.code.of_inputs(by_argument)
    assert [int(it) for it in inputs] == list(program.input_gradients.values())


@pytest.mark.slow
def test_small_pieces_bring_each_gradient_once_and_that_of_the_input_last(part):
    one, all_at_once = (part.code.buckets(0, size) for size in (1, 10**9))
    arguments = [at for at, v in enumerate(part._joint.gradients) if v >= 0]
    for buckets in (one, all_at_once):
        assert sorted(at for bucket in buckets for at in bucket) == arguments
    assert len(one) > len(all_at_once)
    of_input = part._joint.gradients.index(next(iter(part.program.input_gradients.values())))
    assert of_input in one[-1]
    assert part.code.in_pieces(0, 1) is part.code.in_pieces(0, 1)


def test_what_the_backward_reads_comes_back_to_its_place(part):
    """Of all resident values only those that it reads, and constants, are there again."""
    row = part.code.row(0)
    resident = [object() for _ in row.halves.resident]
    again = row.resident_again([resident[at] for at in row.kept])
    read = [v in row.halves.read_backward for v in row.halves.resident]
    assert any(read)
    assert again == [it if is_read else None for it, is_read in zip(resident, read, strict=True)]
