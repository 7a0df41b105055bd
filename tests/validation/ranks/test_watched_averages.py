"""Ranks that wait in an average of gradients for one that has left its step."""

from __future__ import annotations

import os
import time
from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.ranks import watched_averages  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

WIDTH = 16
LOSS = nn.functional.mse_loss


def _alone(rank, folder):
    def end(number, line):
        (folder / "line").write_text(f"{number} {line}")
        os._exit(3)

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)))
    data = torch.randn(256, WIDTH), torch.randn(256, WIDTH)
    with (
        mock.patch.multiple("schedsim.validation.ranks.standstill", STANDSTILL_S=1.0),
        mock.patch.multiple(watched_averages, EVERY_S=0.2, _end_process=end),
    ):
        options = {"shapes": "raise", "effort": 0.2, "level": "op"}
        module = schedsim.rematerialize(model, data, "150%", LOSS, **options)
        wrapper = nn.parallel.DistributedDataParallel(module)
        for number in range(3):
            size = 255 if (rank, number) == (1, 1) else 256
            try:
                wrapper(*(tensor[:size] for tensor in data)).backward()
            except schedsim.SchedsimError as error:
                (folder / "said").write_text(str(error))
                while not (folder / "line").exists():  # as a notebook, whose cell has ended
                    time.sleep(0.1)
                os._exit(4)


@pytest.mark.slow
def test_an_averaged_step_that_one_rank_leaves_ends_the_others(tmp_path):
    """They wait where no Python runs: the process ends, with the message."""
    assert run_ranks(_alone, 2, tmp_path, timeout_s=60, allow_exit=True) == [3, 4]
    said = (tmp_path / "said").read_text()
    assert said.startswith("the step is not as planned")
    line = (tmp_path / "line").read_text()
    assert line.startswith(f"0 rank 1 left a step by SchedsimError: {said} (and began no other")
