"""The two ways to a joint graph, and the line of the user's code where neither works."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture import fronts  # noqa: E402
from schedsim.validation.capture.fronts import Span, _recurrence, _refusal, _watch  # noqa: E402
from schedsim.validation.capture.skeleton import Skeleton  # noqa: E402
from torch import nn  # noqa: E402

from schedsim.errors import UnsupportedError  # noqa: E402


class Step(nn.Module):
    """A model of two parts, one in the other, and a loss."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 1)))
        self.loss_function = nn.MSELoss()
        self.fails = fails

    def forward(self, x):
        out = self.model[0](x) if self.fails else self.model(x)
        return self.loss_function(out, torch.zeros_like(out))


def test_stays_in_modules_are_noted_from_inside_out(monkeypatch):
    """By path in the model; what is outside of it is the loss; numbers never overlap wrongly."""
    counter = iter(range(1000))
    monkeypatch.setattr(fronts, "sequence_number", lambda: next(counter))
    step, spans = Step(), []
    handles = _watch(step, spans)
    step(torch.ones(3, 2))
    for handle in handles:
        handle.remove()
    assert [span.path for span in spans] == ["0", "1.0", "1.1", "1", "", "loss", "loss"]
    by_path = {span.path: span for span in spans[:5]}
    outer, inner = by_path["1"], by_path["1.1"]
    assert outer.start < inner.start < inner.stop < outer.stop
    assert by_path[""].stop < spans[5].start
    spans.clear()
    step(torch.ones(3, 2))
    assert spans == []


def test_what_a_failed_trace_left_behind_is_passed_over(monkeypatch):
    """A module that was entered and never left does not swallow the next stay."""
    monkeypatch.setattr(fronts, "sequence_number", lambda: 7)

    class Raising(nn.Module):
        def forward(self, x):
            raise ValueError

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss_function = nn.Sequential(Raising()), None

        def forward(self, x):
            try:
                return self.model(x)
            except ValueError:
                return x

    spans: list[Span] = []
    step = Outer()
    _watch(step, spans)
    step(torch.ones(1))
    assert [span.path for span in spans] == [""]


DYNAMO = """Unsupported: data-dependent branch
  Explanation: ...

from user code:
   File "/home/me/model.py", line 10, in forward
    return self.inner(x)
  File "/home/me/model.py", line 31, in forward
    if x.sum() > 0:
"""


def test_the_innermost_line_that_dynamo_names_is_shown():
    """With the reason's first line, and the way out."""
    error = _refusal(ValueError("fake\\nlong"), RuntimeError(DYNAMO))
    assert error.message.startswith("/home/me/model.py:31 `if x.sum() > 0:`: ")
    assert "data-dependent branch" in error.message
    assert "ValueError: fake" in error.message
    assert "by blocks" in error.hint


def test_else_the_line_that_failed_directly():
    """Outside of torch; long reasons are cut."""

    def model_code():
        raise KeyError("x" * 300)

    try:
        model_code()
    except KeyError as caught:
        direct = caught
    error = _refusal(direct, RuntimeError(""))
    _, first = inspect.getsourcelines(model_code)
    assert error.message.startswith(f"{__file__}:{first + 1} `raise KeyError")
    assert "RuntimeError" in error.message
    assert len(error.message) < 500 + len(__file__)


@pytest.mark.parametrize(
    ("layer", "refused"),
    [
        ({"dropout": 0.5, "num_layers": 2}, True),
        ({"dropout": 0.0, "num_layers": 2}, False),
        ({"num_layers": 1}, False),
    ],
)
def test_dropout_inside_of_cudnn_is_refused(layer, refused):
    """Its numbers cannot be drawn again; on the CPU, and in evaluation, they need not be."""
    step = nn.Sequential(nn.LSTM(2, 2, **layer))

    def on(device, step=step):
        return _recurrence(Skeleton(step, (), device, {}, (), 0))

    if refused:
        with pytest.raises(UnsupportedError, match="cuDNN") as caught:
            on("cuda")
        assert "dropout=0" in caught.value.hint
    else:
        on("cuda")
    on("cpu")
    on("cuda", step.eval())
