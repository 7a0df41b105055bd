"""Random numbers that take less room than the state of their generator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.capture.program import generator_states_bytes  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from torch import nn  # noqa: E402


class Noisy(nn.Module):
    """Adds numbers of a Poisson distribution, which inductor leaves to the generator."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        mean = self.linear(x)
        noise = torch.poisson(torch.ones_like(mean))
        return (mean + noise.sin()).tanh()


@pytest.mark.parametrize("rows", [4, 1024])
def test_a_state_is_kept_only_for_numbers_that_take_more(rows):
    """5056 bytes on a CPU: 4 rows of 8 numbers are kept themselves."""
    captured = capture(Noisy(), (torch.zeros(rows, 8),), lambda y: y.sum())
    program = fused(captured.program, Groups())
    [draw] = [call for call in program.calls if call.random]
    state_bytes = torch.get_rng_state().numel()
    assert draw.once == (4 * 8 * rows <= state_bytes)
    assert generator_states_bytes(program, "cpu") == (0 if draw.once else 2 * state_bytes)
