"""Dynamo breaks its graph where a tensor gets other data, if it is asked to."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.torch_private.replaced_data import break_at_replaced_data  # noqa: E402


class Follower(torch.nn.Module):
    """A parameter whose data each forward replaces."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x):
        x = x.sin()
        with torch.no_grad():
            self.weight.data = self.weight.data * 0.5
        return x * self.weight


@pytest.mark.parametrize(("is_wanted", "fullgraph"), [(True, False), (True, True), (False, False)])
def test_a_graph_with_replaced_data_breaks_where_that_is_wanted(is_wanted, fullgraph):
    torch._dynamo.reset()
    graphs, model, x = [], Follower(), torch.randn(2)

    def backend(graph_module, inputs):
        graphs.append(graph_module)
        return graph_module.forward

    before = model.weight.data
    was_wanted = break_at_replaced_data(is_wanted)
    try:
        found = torch.compile(model, backend=backend, fullgraph=fullgraph)(x)
    finally:
        assert break_at_replaced_data(was_wanted) == is_wanted
    assert torch.equal(found, x.sin() * 0.5)
    assert before.tolist() == [1, 1]  # whoever holds the former data keeps it
    assert (len(graphs) > 1) == (is_wanted and not fullgraph)
    torch._dynamo.reset()
