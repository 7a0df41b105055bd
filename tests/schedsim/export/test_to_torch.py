"""Code for PyTorch: it runs blocks as often as the exported schedule does."""

from __future__ import annotations

import pytest
from small_exports import executed, loose, tight

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("made", [tight, loose])
def test_blocks_run_as_often_as_their_stages(made):
    """Counted over forward and backward; the result is that of the line."""
    exported = made("torch")
    names = executed(exported.text)
    counts = [0] * names["NUM_BLOCKS"]
    weights = [torch.tensor(i + 2.0, requires_grad=True) for i in range(len(counts))]

    def block(i):
        def run(x):
            counts[i] += 1
            return x * weights[i]  # both are saved for the backward, x by running again

        return run

    x = torch.ones(1, requires_grad=True)
    out = names["forward"]([block(i) for i in range(len(counts))], x)
    out.backward()
    assert out.item() == x.grad.item() == 2 * 3 * 4 * 5 * 6 * 7
    assert counts == [exported.schedule.names.count(f"F{i}") for i in range(len(counts))]
    with pytest.raises(ValueError, match="the plan was made for 6"):
        names["forward"]([], x)
