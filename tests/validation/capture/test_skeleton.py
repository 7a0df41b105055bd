"""A model without its memory: inputs shared out, refusals, and fakes in place of tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.capture.skeleton import (  # noqa: E402
    count_extra_inputs,
    make_skeleton,
    refuse_unusual,
    run_step,
)
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402

from schedsim.errors import SchedsimError, UnsupportedError  # noqa: E402


class Tied(nn.Module):
    """Two names for one weight; a buffer; a frozen bias."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 4), nn.Linear(4, 4)
        self.leave.weight = self.enter.weight
        self.leave.bias.requires_grad_(False)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x, *, scale=1.0, mask=None):
        out = self.leave(self.enter(x)) * scale + self.shift
        return out if mask is None else out * mask


def mse(out, target):
    return ((out - target) ** 2).mean()


def skeleton(model=None, inputs=None, kwargs=None, loss=mse):
    inputs = inputs or (torch.randn(3, 4), torch.randn(3, 4))
    return make_skeleton(model or Tied(), inputs, kwargs or {}, loss, FakeTensorMode())


def test_nothing_real_is_left_and_nothing_real_is_changed():
    """Fakes of the same shapes; the model's own tensors stay."""
    model = Tied()
    before = {name: id(p) for name, p in model.named_parameters()}
    found = skeleton(model)
    fakes = [*found.step.parameters(), *found.step.buffers(), *found.tensors]
    assert all(isinstance(one, FakeTensor) for one in fakes)
    assert {name: id(p) for name, p in model.named_parameters()} == before
    assert not any(isinstance(p, FakeTensor) for p in model.parameters())
    loss = found.step(*found.tensors)
    assert isinstance(loss, FakeTensor)
    assert loss.shape == ()


def test_names_sizes_and_what_gets_a_gradient():
    """A tied weight has its first name and counts once; the device is the model's."""
    found = skeleton()
    assert found.canonical["model.leave.weight"] == "enter.weight"
    assert set(found.requires_grad) == {"enter.weight", "enter.bias"}
    assert found.static_bytes == 4 * (16 + 4 + 4 + 4)
    assert found.device == "cpu"


@pytest.mark.parametrize(
    ("loss", "num", "want"),
    [
        (None, 3, 0),
        (nn.functional.cross_entropy, 2, 1),
        (lambda out: out.sum(), 2, 0),
        (lambda out, *extra: out.sum(), 3, 2),
        (lambda out, a, b, c: out.sum(), 2, 2),
        (nn.MSELoss(), 2, 1),
        (max, 2, 1),
    ],
)
def test_the_last_inputs_go_to_the_loss(loss, num, want):
    """As many as it requires after the output, or as the model has no parameter for."""
    assert count_extra_inputs(nn.Linear(2, 2), loss, num) == want


def test_inputs_are_taken_apart_and_put_together():
    """Nested, with constants and keywords; in the same order."""
    mask = torch.ones(4)
    found = skeleton(kwargs={"scale": 2.0, "mask": mask})
    x, target = torch.randn(3, 4), torch.randn(3, 4)
    tensors = found.step.plan.tensors((x, target), {"scale": 2.0, "mask": mask})
    assert [id(t) for t in tensors] == [id(x), id(target), id(mask)]
    inputs, kwargs = found.step.plan.rebuild(tuple(tensors))
    assert inputs[0] is x
    assert inputs[1] is target
    assert kwargs["scale"] == 2.0
    assert kwargs["mask"] is mask


def test_other_inputs_are_refused():
    """Another nesting, another constant, a tensor for a constant: each with what was captured."""
    plan = skeleton(kwargs={"scale": 2.0}).step.plan
    x = torch.randn(3, 4)
    with pytest.raises(SchedsimError, match="not nested as the captured ones"):
        plan.tensors((x,), {"scale": 2.0})
    with pytest.raises(SchedsimError, match=r"an input is 3\.0 where 2\.0 was captured"):
        plan.tensors((x, x), {"scale": 3.0})
    with pytest.raises(SchedsimError, match=r"a tensor \(4,\) where 2\.0"):
        plan.tensors((x, x), {"scale": torch.ones(4)})
    with pytest.raises(SchedsimError, match="an input is 7 where a tensor was captured") as caught:
        plan.tensors((x, 7), {"scale": 2.0})
    assert "capture again" in caught.value.hint


def test_models_of_unusual_parameters_are_refused():
    """Without a shape, sparse, or not plain: by name."""
    with pytest.raises(UnsupportedError, match=r"0\.weight has no shape yet"):
        refuse_unusual(nn.Sequential(nn.LazyLinear(3)))
    sparse = nn.Module()
    sparse.register_buffer("table", torch.eye(3).to_sparse())
    with pytest.raises(UnsupportedError, match="table is sparse"):
        refuse_unusual(sparse)

    class Odd(torch.Tensor):
        pass

    odd = nn.Module()
    odd.register_buffer("kind", torch.ones(2).as_subclass(Odd))
    with pytest.raises(UnsupportedError, match="kind is a Odd, not a plain tensor"):
        refuse_unusual(odd)


def test_a_model_that_cannot_be_copied_says_why():
    """The class of the error, and where tensors should be."""

    class Alone(nn.Module):
        def __deepcopy__(self, memo):
            raise TypeError("there is only one")

    with pytest.raises(UnsupportedError, match="TypeError: there is only one") as caught:
        skeleton(Alone(), (torch.ones(2),), loss=None)
    assert "buffers" in caught.value.hint


def test_the_last_inputs_are_the_losses_own():
    """The model does not see them; without a loss, its output is the step's."""
    model, x = nn.Linear(2, 2), torch.randn(3, 2)
    target = torch.randn(3, 2)
    found = run_step(model, mse, 1, (x, target), {})
    torch.testing.assert_close(found, mse(model(x), target))
    torch.testing.assert_close(run_step(model, None, 0, (x,), {}), model(x))
