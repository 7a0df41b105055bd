"""Steps that raise, and a loop that goes on: what they leave is what the plain step leaves."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

WIDTH, BATCH = 8, 32


class Looked(nn.Module):
    """Batch statistics, dropout and a note before a table that knows ten rows, and behind."""

    def __init__(self, notes=False):
        super().__init__()
        parts = (nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Dropout(0.2))
        self.before = nn.Sequential(*parts)
        self.table = nn.Embedding(10, WIDTH)
        self.behind = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())
        self.notes, self.rows = notes, None

    def forward(self, x, rows):
        if self.notes:
            self.rows = rows
        return self.behind(self.before(x) + self.table(rows))


def steps(door, build=Looked, bad=(2, 3), hook=None):
    """What a loop has after each step, which raises in the `bad` ones; and its model."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = build()
    if hook is not None:
        model.before[0].weight.register_hook(hook)
    x, rows = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
    step = model
    if door == "in place":
        schedsim.rematerialize(model, (x, rows), "100%", in_place=True, effort=0.1)
    elif door == "backend":
        options = {"budget": "100%", "effort": 0.1}
        step = torch.compile(model, backend="schedsim", options=options)
    optimizer, left = torch.optim.SGD(model.parameters(), lr=0.01), []
    for number in range(6):
        factor = 1.0 if hook is None or number not in bad else 1e6
        wrong = 100 if hook is None and number in bad else 0
        optimizer.zero_grad()
        try:
            loss = (step(x, rows + wrong) * factor).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            left.append(loss.detach())
        except (IndexError, ArithmeticError) as error:
            left.append((type(error), str(error)))
        loss = None
        left.append([b.clone() for b in model.buffers()])
        left.append(torch.get_rng_state())
        left.append(model.rows)
    return left, [p.detach() for p in model.parameters()]


def same(one, other):
    """Equal to the bit, through lists."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.slow
@pytest.mark.parametrize("door", ["in place", pytest.param("backend", marks=pytest.mark.slow)])
def test_a_forward_that_raises_leaves_what_the_plain_one_leaves(door):
    """The statistics in front of the table have moved, those behind it have not."""
    expected, parameters = steps("plain")
    assert [it[0] for it in expected if isinstance(it, tuple)] == [IndexError] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        found, others = steps(door)
    assert same(found, expected)
    assert same(others, parameters)


@pytest.mark.slow
def test_what_it_has_set_in_python_is_set_in_place_and_told_by_the_backend():
    expected, _ = steps("plain", lambda: Looked(notes=True))
    found, _ = steps("in place", lambda: Looked(notes=True))
    assert same(found, expected)
    with pytest.warns(PlainStepWarning, match="what it had set in Python is as before it"):
        found, _ = steps("backend", lambda: Looked(notes=True))
    different = [i for i in range(len(expected)) if not same(found[i], expected[i])]
    assert different == [2 * 4 + 3, 3 * 4 + 3]  # the rows that it was given in these steps


def refuse_large(gradient):
    """A hook that stops a backward."""
    if gradient.abs().max() > 1e3:
        raise ArithmeticError("a gradient is too large")


@pytest.mark.slow
@pytest.mark.parametrize("door", [pytest.param("in place", marks=pytest.mark.slow), "backend"])
def test_a_backward_that_raises_is_told_of_as_it_leaves_other_gradients(door):
    """A graph gives its gradients together, and the plain step one after another."""
    expected, parameters = steps("plain", hook=refuse_large)
    assert [it[0] for it in expected if isinstance(it, tuple)] == [ArithmeticError] * 2
    with pytest.warns(PlainStepWarning, match="a backward has raised") as said:
        found, others = steps(door, hook=refuse_large)
    assert [it.category for it in said].count(
        PlainStepWarning
    ) == 1  # the loop holds ever more, too
    assert same(found, expected)
    assert same(others, parameters)


@pytest.mark.slow
def test_an_error_that_the_plain_forward_does_not_raise_stays(monkeypatch):
    """And nothing is called twice that raises no more."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Looked()
    x, rows = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
    schedsim.rematerialize(model, (x, rows), "100%", in_place=True, effort=0.1)
    model(x, rows).sum().backward()

    def fails(*_):
        raise ArithmeticError("of a schedule")

    from schedsim.validation.drop_in.parts.traced_part import TracedPart

    monkeypatch.setattr(TracedPart, "_run_forward", fails)
    with pytest.raises(ArithmeticError, match="of a schedule"):
        model(x, rows)


@pytest.mark.slow
def test_without_memory_nothing_runs_again_and_a_line_says_what_is_left(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Looked()
    x, rows = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
    schedsim.rematerialize(model, (x, rows), "100%", in_place=True, effort=0.1)
    model(x, rows).sum().backward()
    before = [b.clone() for b in model.buffers()]

    def fails(*_):
        raise torch.OutOfMemoryError("none is left")

    from schedsim.validation.drop_in.parts.traced_part import TracedPart

    monkeypatch.setattr(TracedPart, "_run_forward", fails)
    with (
        pytest.warns(PlainStepWarning, match="ran out of memory"),
        pytest.raises(torch.OutOfMemoryError),
    ):
        model(x, rows)
    assert same([*model.buffers()], before)
