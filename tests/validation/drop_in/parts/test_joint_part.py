"""What a joint graph becomes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from torch import nn  # noqa: E402


def test_names_and_roles():
    """Parameters are static, outputs are held, statistics update with the forward half."""
    torch._dynamo.reset()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.fc(x))

    options = {"budget": 10**9}
    torch.compile(Net(), backend="schedsim", options=options)(
        torch.randn(8, 4)
    ).square().sum().backward()
    (part,) = session_of(options).parts
    assert any("fc" in name and "weight" in name for name in part.program.parameters)
    assert {name.partition(".")[0] for name in part.graph.op_names} >= {"fc", "norm", "grad"}
    assert part.output_bytes() == part.given_bytes() == 8 * 4 * 4
    assert part.gradient_bytes == (16 + 4 + 4 + 4) * 4
    assert part.input_bytes() == 8 * 4 * 4
    torch._dynamo.reset()


@pytest.mark.slow
def test_open_sizes_are_formulas():
    """A second shape, where torch was not told otherwise, has a graph for all to come."""
    torch._dynamo.reset()
    options = {"budget": 10**9, "effort": 0.2}
    step = torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="schedsim", options=options)
    for length in (8, 9, 10):
        step(torch.randn(length, 4)).square().sum().backward()
    fixed, varying = session_of(options).parts
    assert not fixed.sizes.names
    assert varying.sizes.traced == (9,)
    assert varying.output_bytes((9,)) == 9 * 16 == varying.output_bytes((18,)) // 2
    torch._dynamo.reset()


class Positions(nn.Module):
    """A table bounds the lengths that it takes, as those of position embeddings do."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(512, 8))
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))

    def forward(self, x):
        return self.layers(x + self.table[: x.shape[1]])


@pytest.mark.slow
@pytest.mark.parametrize("told", [None, 64])
def test_the_length_of_a_table_is_no_length_to_plan_for(told):
    """The budget need not hold what nobody gives."""
    torch._dynamo.reset()
    model = Positions()
    options = {"budget": 10**9, "effort": 0.2}
    step = torch.compile(model, backend="schedsim", options=options)
    for length in (48, 40):
        x = torch.randn(4, length, 8)
        if told:
            torch._dynamo.mark_dynamic(x, 1, min=2, max=told)
        step(x).square().sum().backward()
    session = session_of(options)
    (size,) = session.parts[-1].sizes.open_sizes
    assert (size.told, size.most) == (told, told or 512)
    assert session.parts[-1].sizes.limit((40,), {}) == (told or 40,)
    torch._dynamo.reset()


class Dispatched(nn.Module):
    """The rows of each expert together, as many as data say, then all of them back in place."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 8))

    def forward(self, x):
        chosen = x[:, :3].argmax(-1)
        rows = chosen.sort(stable=True).indices
        parts = x[rows].split(torch.bincount(chosen, minlength=3).tolist())
        done = torch.cat([(part @ self.weight[i]).tanh() for i, part in enumerate(parts)])
        return torch.zeros_like(x).index_add(0, rows, done)


@pytest.mark.slow
def test_the_rows_of_experts_are_measured_together():
    """Torch knows that each of the numbers may be all rows, but no step has all rows for each."""
    torch._dynamo.reset()
    options = {"budget": 10**9, "effort": 0.2}
    step = torch.compile(Dispatched(), backend="schedsim", options=options)
    for _ in range(3):
        step(torch.randn(32, 8)).square().sum().backward()
    sizes = session_of(options).parts[-1].sizes
    assert [(at.dim, at.told, at.most) for at in sizes.open_sizes] == [(-1, None, 32)] * 3
    assert all(sum(binding) == 32 for binding in sizes.measured)
    torch._dynamo.reset()


class Masked(nn.Module):
    """Code that Dynamo does not trace makes a mask that is a view, as of `attention_mask`."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))

    @staticmethod
    @torch._dynamo.disable
    def mask(kept):
        return kept[:, None, :].expand(kept.shape[0], kept.shape[1], kept.shape[1])

    def forward(self, x, kept):
        scores = self.layers(x) @ x.mT
        return (scores + self.mask(kept)).softmax(-1)


@pytest.mark.slow
def test_an_argument_that_is_a_view_has_bytes_of_its_own_sizes():
    """Its base, whose sizes stand in no argument, has others that agree by accident."""
    torch._dynamo.reset()
    model = Masked()
    options = {"budget": 10**9, "effort": 0.2}
    step = torch.compile(model, backend="schedsim", options=options)
    for length in (12, 8, 10):
        step(torch.randn(4, length, 8), torch.zeros(4, length)).square().sum().backward()
    part = session_of(options).parts[-1]
    assert part.sizes.names
    (mask,) = [v for v in part.program.inputs.values() if len(part.program.values[v].shape) == 3][
        -1:
    ]
    size = part.program.storages[part.program.values[mask].storage].size_bytes
    numbers = dict.fromkeys(part.sizes.names, 10)
    assert size.at(numbers) == 4 * 4 * 10
    torch._dynamo.reset()
