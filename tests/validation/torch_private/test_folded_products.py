"""A product of a batch is one product of matrices exactly where it is one in a plain step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from schedsim.validation.torch_private.folded_products import folded_products  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402


class Laid(nn.Module):
    """A frozen product behind a transposition: its batch strides are no other than its rows'."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.frozen = nn.Linear(64, 64, bias=False).requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.first(x).unsqueeze(-1).transpose(1, 2))


@pytest.mark.parametrize("level", ["op", "in place", "backend", "open sizes"])
def test_a_frozen_layer_behind_a_transposition_has_the_bits_of_the_plain_step(level):
    torch.manual_seed(0)
    model, x = Laid(), torch.randn(48, 64)
    plain = model(x).square().mean()
    plain.backward()
    expected = [it.grad.clone() for it in model.first.parameters()]
    model.zero_grad()
    if level == "op":
        loss = schedsim.rematerialize(
            model, (x,), "100%", lambda out: out.square().mean(), level="op", effort=0.1
        )(x)
    elif level == "in place":
        schedsim.rematerialize(model, (x,), "100%", in_place=True, effort=0.1)
        loss = model(x).square().mean()
    else:
        torch._dynamo.reset()
        step = torch.compile(
            model, backend="schedsim", options={"budget": "1GB"}, dynamic=level == "open sizes"
        )
        loss = step(x).square().mean()
    loss.backward()
    assert torch.equal(loss, plain)
    for it, gradient in zip(model.first.parameters(), expected, strict=True):
        assert torch.equal(it.grad, gradient)


@st.composite
def operands(draw):
    """Two tensors that can be multiplied, of 1 to 4 dimensions, each laid out in some way."""
    rows, inner, columns = (draw(st.integers(0, 4)) for _ in range(3))
    batch = [draw(st.integers(1, 3)) for _ in range(2)]
    made = []
    for matrix, vector in (((rows, inner), (inner,)), ((inner, columns), (inner,))):
        dims = draw(st.integers(1, 4))
        outer = [draw(st.sampled_from([1, n])) for n in batch][: dims - 2] if dims > 2 else []
        shape = [*outer[::-1], *matrix] if dims > 1 else list(vector)
        order = draw(st.permutations(range(dims)))
        whole = torch.randn([shape[k] * draw(st.sampled_from([1, 1, 2])) for k in order])
        back = [order.index(k) for k in range(dims)]
        laid = whole.permute(back)[tuple(slice(n) for n in shape)]
        made.append(laid.requires_grad_(draw(st.booleans())))
    return made


def products(tensor):
    """The kinds of products in the graph behind `tensor`."""
    found, left = [], [tensor.grad_fn]
    while left:
        node = left.pop()
        if node is not None:
            found += [node.name()] if node.name()[:2] in ("Mm", "Bm", "Mv", "Do") else []
            left += [before for before, _ in node.next_functions]
    return sorted(found)


@settings(max_examples=300, deadline=None)
@given(operands())
def test_the_rule_multiplies_as_the_kernel_does(pair):
    """The same kinds of products, and the same bits."""
    one, two = pair
    kernels = torch.matmul(one, two)
    with folded_products():
        rules = torch._decomp.decompositions.matmul(one, two)
    assert products(kernels) == products(rules)
    assert torch.equal(kernels, rules)
    trained = [it for it in pair if it.requires_grad]
    if trained:
        with_kernels = torch.autograd.grad(kernels.sum(), trained)
        assert all(map(torch.equal, with_kernels, torch.autograd.grad(rules.sum(), trained)))
