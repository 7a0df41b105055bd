"""Recurrent layers under torch.compile(backend="schedsim"): planned, equal to the bit."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import schedsim, session_of  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning  # noqa: E402
from torch import nn  # noqa: E402


class Tagger(nn.Module):
    """A recurrent layer with dropout between its layers, and a head."""

    def __init__(self, kind):
        super().__init__()
        self.layer = kind(16, 16, num_layers=2, dropout=0.3)
        self.head = nn.Linear(16, 16)

    def forward(self, x):
        return self.head(self.layer(x.tanh())[0]).sin()


class Cells(nn.Module):
    """A cell in a loop of Python."""

    def __init__(self, _kind):
        super().__init__()
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x):
        hidden = x.new_zeros(x.shape[1:])
        for one in x:
            hidden = self.cell(one, hidden)
        return hidden


@pytest.fixture
def made(request):
    """A model, its twin, the compiled model, and its session."""
    torch._dynamo.reset()  # also forgets callbacks, without which layers would not be seen
    torch.manual_seed(0)
    model = request.param[0](request.param[1])
    options = {"budget": "8MiB", "effort": 0.1}
    compiled = torch.compile(model, backend=schedsim, options=options)
    yield copy.deepcopy(model), model, compiled, session_of(options)
    torch._dynamo.reset()


def left_by(call, model, x):
    """The output and the gradients of a step, from one state of the generator."""
    torch.manual_seed(1)
    model.zero_grad()
    out = call(x)
    out.square().sum().backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


MODELS = [(Tagger, nn.LSTM), (Tagger, nn.GRU), (Cells, None)]
every_model = pytest.mark.parametrize("made", MODELS, indirect=True, ids=["lstm", "gru", "cells"])
the_lstm = pytest.mark.parametrize("made", MODELS[:1], indirect=True, ids=["lstm"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [pytest.param(case, marks=[pytest.mark.slow] * (case[0] is Tagger)) for case in MODELS],
    indirect=True,
    ids=["lstm", "gru", "cells"],
)
def test_the_layer_is_planned_and_equal_to_the_bit(made):
    """In training and, by other kernels of torch, without gradients."""
    plain, model, compiled, session = made
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlainStepWarning)
        for _ in range(2):
            x = torch.randn(6, 4, 16)
            assert all(map(torch.equal, left_by(compiled, model, x), left_by(plain, plain, x)))
    [part] = session.parts
    targets = " ".join(str(call.target) for call in part.program.calls)
    assert "schedsim.recurrent" in targets or "schedsim.gru_gates" in targets
    for one in (plain, model):
        one.eval()
    with torch.no_grad():
        assert torch.equal(compiled(x), plain(x))


@pytest.mark.slow
@the_lstm
def test_another_length_is_another_size_of_the_same_graph(made):
    plain, model, compiled, session = made
    for length in (6, 9, 7):
        x = torch.randn(length, 4, 16)
        assert all(map(torch.equal, left_by(compiled, model, x), left_by(plain, plain, x)))
    assert len(session.parts) == 2  # as traced, and with an open size


@the_lstm
def test_under_autocast_the_step_is_the_plain_one_and_a_line_says_so(made):
    plain, model, compiled, session = made

    def cast(call):
        def run(x):
            with torch.autocast("cpu", torch.bfloat16):
                return call(x).float()

        return run

    x = torch.randn(6, 4, 16)
    try:
        cast(copy.deepcopy(plain))(x)
    except RuntimeError as error:  # a CPU without such products
        pytest.skip(f"PyTorch has no recurrent layer in bfloat16 here: {error}"[:100])
    with pytest.warns(PlainStepWarning, match="recurrent layer under autocast"):
        found = left_by(cast(compiled), model, x)
    assert all(map(torch.equal, found, left_by(cast(plain), plain, x)))
    assert session.parts == []
