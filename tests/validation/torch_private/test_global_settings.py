"""A loop that changes a setting of torch gets the plain step of that setting."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.global_settings import GlobalSettings  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402


class Attention(nn.Module):
    """Its attention runs by a kernel that a setting of torch chooses."""

    def __init__(self, width=32):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(found.transpose(1, 2).flatten(-2))


class Thirds(nn.Module):
    """Makes a tensor of the default type, whose last digits come through."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 32)

    def forward(self, x):
        thirds = (torch.arange(32) / 3.0).exp()
        return self.fc(x) * thirds.to(x.dtype)


class float64:
    """The default type is float64 in the block."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error):
        torch.set_default_dtype(torch.float32)


def by_math():
    return sdpa_kernel(SDPBackend.MATH)


X, TARGET = torch.randn(8, 24, 32), torch.randn(8, 24, 32)


def loss_of(y, target):
    return (y - target).square().mean()


def outcome(model, loss, setting=None):
    """The loss and gradients of a step, the forward of which runs in `setting`."""
    if setting is None:
        found = loss()
    else:
        with setting():
            found = loss()
    found.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return [found.detach(), *gradients]


@pytest.mark.parametrize(
    ("layer", "setting", "form"),
    [
        pytest.param(Attention, by_math, "op", marks=pytest.mark.slow),
        (Attention, by_math, "block"),
        pytest.param(Attention, by_math, "in place", marks=pytest.mark.slow),
        (Thirds, float64, "op"),
        (Thirds, float64, "block"),
    ],
)
def test_the_forward_runs_in_its_own_setting(layer, setting, form):
    """In turn, as a loop may; a forward that is repeated in the backward runs as at first."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer() for _ in range(4)))
    plain = copy.deepcopy(model)
    if form == "in place":
        schedsim.rematerialize(model, X, "75%", in_place=True, effort=0.2)

        def step():
            return loss_of(model(X), TARGET)
    else:
        planned = schedsim.rematerialize(
            model, (X, TARGET), "75%", loss=loss_of, level=form, effort=0.2
        )

        def step():
            return planned(X, TARGET)

    expected = {}
    for one in (None, setting):
        expected[one] = outcome(plain, lambda: loss_of(plain(X), TARGET), one)
    assert not all(map(torch.equal, *expected.values()))
    for one in (None, setting, None, setting):
        assert all(map(torch.equal, expected[one], outcome(model, step, one)))
    if form == "block":
        assert max(planned.run_counts.values()) > 1


def test_the_backend_refuses_a_graph_of_another_setting():
    """Dynamo does not look whether attention runs by another kernel than when it traced."""
    torch.manual_seed(0)
    model = Attention()
    compiled = torch.compile(model, backend="schedsim", options={"budget": "4MB"})
    compiled(X).sum().backward()
    with by_math(), pytest.raises(SchedsimError, match="torch's attention is"):
        compiled(X)


def test_settings_are_put_and_put_back():
    """Those that differ from the present ones, and no others."""
    before = GlobalSettings.now()
    assert before.difference(GlobalSettings.now()) is None
    with by_math(), float64():
        inside = GlobalSettings.now()
    assert inside != before
    assert inside.attention == ("math",)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        strict = GlobalSettings.now()
    finally:
        torch.use_deterministic_algorithms(False)
    assert strict.deterministic == (True, True)
    for one in (inside, strict):
        with one.entered():
            assert GlobalSettings.now() == one
            with before.entered():
                assert GlobalSettings.now() == before
        assert GlobalSettings.now() == before
    assert before.difference(strict).startswith("torch's deterministic is (True, True)")
