"""The CTC loss, what of it depends on data, and the ops in its place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.ctc import MEAN, NONE, SUM, ctc_as_op  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Recogniser(nn.Module):
    """Two convolutions over time, and classes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 32, 3, padding=1), nn.Conv1d(32, 12, 3, padding=1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).permute(2, 0, 1).log_softmax(-1)


def recognised(found, targets, lengths):
    return nn.functional.ctc_loss(found, targets, torch.full((3,), 40), lengths)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("kind", ["padded", "joined", "int32", "lists", "one sample", "bfloat16"])
def test_ops_have_the_bits_of_the_function(reduction, zero_infinity, kind):
    torch.manual_seed(0)
    x = torch.randn(9, 3, 6, dtype=torch.bfloat16 if kind == "bfloat16" else torch.float32)
    targets, times, lengths = torch.randint(1, 6, (3, 5)), [9, 4, 7], [5, 4, 2]
    if kind == "joined":
        targets = torch.cat([row[:n] for row, n in zip(targets, lengths, strict=True)])
    elif kind == "int32":
        targets = targets.int()
    elif kind == "one sample":
        x, targets, times, lengths = x[:, 0], targets[0], 9, 5
    if kind not in ("lists", "int32"):
        times, lengths = torch.tensor(times), torch.tensor(lengths)
    elif kind == "int32":
        times, lengths = torch.tensor(times).int(), torch.tensor(lengths).int()
    rows = []
    for function in (torch.ctc_loss, ctc_as_op):
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=kind == "bfloat16"):
            loss = function(
                given.log_softmax(-1), targets, times, lengths, 0, reduction, zero_infinity
            )
        loss.backward(torch.ones_like(loss))
        rows.append((loss, given.grad))
    (loss, gradient), (own_loss, own_gradient) = rows
    assert loss.dtype == own_loss.dtype
    assert torch.equal(loss, own_loss)
    assert torch.equal(gradient.nan_to_num(), own_gradient.nan_to_num())


def test_a_step_with_the_loss_is_planned_and_stays_within_the_budget_whatever_the_lengths():
    torch.manual_seed(0)
    model, x = Recogniser(), torch.randn(3, 4, 40)
    targets, lengths = torch.randint(1, 12, (3, 9)), torch.tensor([3, 2, 4])
    module = schedsim.rematerialize(model, (x, targets, lengths), "100%", recognised, effort=0.1)
    assert module.level == "op"
    plan = module.plan
    resident = storage_bytes([list(model.parameters()), x, targets, lengths])
    for given in (lengths, torch.tensor([9, 9, 9])):
        model.zero_grad()
        loss = recognised(model(x), targets, given)
        loss.backward()
        expected = [p.grad for p in model.parameters()]
        model.zero_grad()
        [reading] = AllocatorMeter().read(lambda: module(x, targets, given).backward())  # noqa: B023
        assert all(map(torch.equal, expected, (p.grad for p in model.parameters())))
        assert resident + reading.peak_bytes <= module.plan.peak_bytes
        assert module.plan is plan
