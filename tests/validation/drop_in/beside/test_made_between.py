"""What the loop's own code has made, and holds through the next forward."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.beside.made_between import MadeBetween  # noqa: E402
from schedsim.validation.measure.storage import bytes_by_place  # noqa: E402
from torch import nn  # noqa: E402


def test_what_is_there_still_is_found_once():
    made, held, gone, counted = MadeBetween(), torch.zeros(100), torch.zeros(50), torch.zeros(25)
    made.learn(bytes_by_place([held, gone, counted]))
    assert made.unwatched_bytes == 0
    del gone
    found = made.look(lambda: bytes_by_place([counted]))
    assert [it.size_bytes for it in found] == [400]
    assert made.num_bytes == 400
    assert made.look(lambda: pytest.fail("nothing is looked for")) == ()
    assert (made.num_bytes, made.unseen_bytes) == (400, 0)
    del held
    assert made.unwatched_bytes == made.unseen_bytes == 400  # of later steps nothing tells


def test_what_has_come_to_an_address_meanwhile_is_another():
    """As the noise that the next step draws where the last one's image was."""
    made, tensor = MadeBetween(), torch.zeros(1 << 16)
    blocks = bytes_by_place(tensor)
    made.learn(blocks)
    for _ in range(100):
        del tensor
        tensor = torch.zeros(1 << 16)
        if bytes_by_place(tensor) == blocks:
            break
    assert made.look(tuple) == ()


def test_what_waits_in_a_cycle_is_not_held():
    made, tensor = MadeBetween(), torch.zeros(100)
    made.learn(bytes_by_place(tensor))
    cycle = [tensor]
    cycle.append(cycle)
    del tensor, cycle
    assert made.look(tuple) == ()


def test_plans_count_it_in_the_forward_alone():
    """Each step assigns anew what it has resized for the loss."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)), torch.randn(8, 16)
    options = {"budget": "1MB", "effort": 0.1, "check": "never"}
    call = torch.compile(model, backend="schedsim", options=options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(5):
        larger = call(x).repeat(50, 1)
        larger.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(session_of(options).plans.known.resident.now)
    # The second step is measured; steps behind it leave as much.
    assert [it.passing_bytes for it in seen] == [0, 0, *[larger.nbytes] * 3]
