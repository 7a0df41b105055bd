"""Recurrent layers as one op each: the bits of torch's own, forward and backward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.capture.recurrent import whole_recurrence  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import UnsupportedError  # noqa: E402

LAYERS = {
    "lstm": lambda **given: nn.LSTM(3, 5, **given),
    "gru": lambda **given: nn.GRU(3, 5, **given),
    "tanh": lambda **given: nn.RNN(3, 5, **given),
    "relu": lambda **given: nn.RNN(3, 5, nonlinearity="relu", **given),
}
FORMS = {
    "plain": {},
    "deep": {"num_layers": 2, "dropout": 0.5},
    "deep, both": {"num_layers": 3, "dropout": 0.2, "bidirectional": True, "bias": False},
    "both": {"bidirectional": True, "batch_first": True},
    "bare": {"bias": False},  # two weights in all, as many as an LSTM has states
}


class Summed(nn.Module):
    """The outputs of a recurrent module, without its states."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs at all times."""
        return self.inner(x)[0]


def trained(layer, x, start=None, packed=False):
    """Outputs, gradients of the input and of all weights; from one state of the generator."""
    torch.manual_seed(3)
    layer.zero_grad()
    x = x.detach().requires_grad_()
    given = pack_padded_sequence(x, torch.tensor([4, 2]), enforce_sorted=True) if packed else x
    out, last = layer(given, start)
    out = pad_packed_sequence(out)[0] if packed else out
    last = last if isinstance(last, tuple) else (last,)
    (out.square().sum() + sum(one.sum() for one in last)).backward()
    return [
        out.detach(),
        *(one.detach() for one in last),
        x.grad,
        *(p.grad for p in layer.parameters()),
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", LAYERS)
def test_outputs_and_gradients_are_to_the_bit(kind, form):
    """Layers of every kind, with dropout between layers, both directions and no biases."""
    torch.manual_seed(0)
    layer, x = LAYERS[kind](**FORMS[form]), torch.randn(4, 2, 3)
    plain = trained(layer, x)
    with whole_recurrence():
        whole = trained(layer, x)
    assert all(map(torch.equal, plain, whole))
    assert len(plain) == len(whole)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_packed_sequences_and_given_states(kind):
    """Sequences of two lengths, from given states."""
    torch.manual_seed(1)
    layer, x = LAYERS[kind](), torch.randn(4, 2, 3)
    state = torch.randn(1, 2, 5)
    start = (state, state * 2) if kind == "lstm" else state
    plain = trained(layer, x, start, packed=True)
    with whole_recurrence():
        whole = trained(layer, x, start, packed=True)
    assert all(map(torch.equal, plain, whole))


def test_each_layer_of_a_module_is_an_op():
    """What a layer's kernel saves is there for the backward of that layer alone."""
    layer, x = nn.LSTM(3, 5, num_layers=3, dropout=0.5, bidirectional=True), torch.randn(4, 2, 3)
    model = Summed(layer)
    program = capture(model, x, squares).program
    targets = [getattr(call.target, "_name", "") for call in program.calls]
    assert targets.count("schedsim::recurrent") == 3
    assert targets.count("schedsim::recurrent_backward") == 3


@pytest.mark.slow
def test_a_deep_module_fits_into_less_than_the_plain_step_takes():
    """What all of its layers save, the plain step holds at once."""
    torch.manual_seed(0)
    model, x = Summed(nn.LSTM(32, 32, num_layers=3)), torch.randn(40, 8, 32)
    resident = storage_bytes([*model.parameters(), x])
    [plain] = AllocatorMeter().read(lambda: squares(model(x)).backward())
    model.zero_grad()
    budget = int(0.8 * (resident + plain.peak_bytes))
    module = schedsim.rematerialize(model, x, budget, squares)
    [within] = AllocatorMeter().read(lambda: module(x).backward())
    assert resident + within.peak_bytes <= budget


def squares(y):
    """A loss."""
    return y.square().sum()


def test_shapes_on_fakes_are_those_of_real_runs():
    """So that the graph charges what is really there."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    for form, given in FORMS.items():
        layer, x = LAYERS["lstm"](**given), torch.randn(4, 2, 3)
        with whole_recurrence():
            real, _ = layer(x)
            with FakeTensorMode() as mode:
                fake_layer = LAYERS["lstm"](**given)
                fake, _ = fake_layer(mode.from_tensor(x))
        assert (fake.shape, fake.stride()) == (real.shape, real.stride()), form


def test_autocast_is_refused():
    """With the level that works."""
    layer = LAYERS["lstm"]()
    with whole_recurrence(), torch.autocast("cpu"), pytest.raises(UnsupportedError) as caught:
        layer(torch.randn(4, 2, 3))
    assert "block" in caught.value.hint


def test_torchs_own_functions_come_back():
    """Afterwards no op of ours runs."""
    with whole_recurrence():
        assert "lstm" in vars(torch._VF)
    assert "lstm" not in vars(torch._VF)


def test_arithmetic_is_that_of_the_products():
    """Two flops a weight and row; the backward runs them three times."""
    layer, x = LAYERS["lstm"](), torch.randn(4, 2, 3, requires_grad=True)
    weights = sum(p.numel() for p in layer.parameters() if p.dim() == 2)
    with whole_recurrence(), FlopCounterMode(display=False) as counter:
        out, _ = layer(x)
        forward = counter.get_total_flops()
        out.sum().backward()
    assert forward == 2 * 4 * 2 * weights
    assert counter.get_total_flops() == 4 * forward
