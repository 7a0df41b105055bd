"""What is resident in a loop that schedsim does not own."""

from __future__ import annotations

import copy
import gc
import itertools

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in.beside.held_state import HeldState, may_record  # noqa: E402
from schedsim.validation.drop_in.drop_in_options import DropInOptions  # noqa: E402
from schedsim.validation.measure.allocator import close_later  # noqa: E402
from schedsim.validation.torch_private.storage_refs import storage_key  # noqa: E402
from schedsim.validation.whole_step import stepped_optimizers  # noqa: E402


def test_gradients_and_optimizers_are_counted_as_they_come():
    """Parameters, then gradients, then the state that an optimizer makes in its first step."""
    model = torch.nn.Linear(10, 10, bias=False)
    held = HeldState(DropInOptions(budget=1, extra_bytes=7))
    held.see(model.parameters())
    assert held.total_bytes == 400 + 7
    model(torch.ones(1, 10)).sum().backward()
    assert held.total_bytes == 800 + 7
    seen = []
    close_later(lambda: seen.append(1) is None)
    torch.optim.AdamW(model.parameters()).step()
    assert seen == [1]
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.step()
    assert held.total_bytes == 800 + 800 + 4 + 7
    model.weight.grad = None
    assert held.total_bytes == 400 + 800 + 4 + 7


def test_the_states_of_adam_are_foreseen_for_all_that_takes_gradients():
    """As large as it will make them, until an optimizer has stepped that makes its own."""
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 10), torch.nn.Linear(10, 10).requires_grad_(False)
    )
    held = HeldState(DropInOptions(budget=1))
    held.see(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    foreseen = held.adam_bytes()
    torch.optim.Adam(model.parameters()).step()
    assert held.adam_bytes() == foreseen  # it is gone
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    assert held.adam_bytes() == 0
    assert held.made_bytes == foreseen == 2 * 440 + 2 * 4


def test_the_states_of_a_second_optimizer_are_foreseen_after_the_first_has_stepped():
    """As of a critic that steps before its generator: a refusal between names room for both."""
    generator, critic = torch.nn.Linear(10, 10), torch.nn.Linear(10, 20)
    held = HeldState(DropInOptions(budget=1))
    held.see([*generator.parameters(), *critic.parameters()])
    critic(generator(torch.ones(1, 10))).sum().backward()
    both, step = held.adam_bytes(), held.adam_step_bytes()
    first = torch.optim.Adam(critic.parameters())
    first.step()
    assert held.adam_bytes() == 2 * 440 + 2 * 4
    assert held.made_bytes + held.adam_bytes() == both
    assert held.adam_step_bytes() == step
    second = torch.optim.SGD(generator.parameters())
    second.step()
    assert held.adam_bytes() == 0


def test_a_state_that_grows_is_counted_as_it_grows():
    """L-BFGS keeps the directions of its last steps, all under the first parameter."""
    model = torch.nn.Linear(10, 10, bias=False)
    held = HeldState(DropInOptions(budget=1))
    held.see(model.parameters())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    x, seen = torch.randn(5, 10), []

    def closure():
        model.weight.grad = None
        loss = model(x).square().sum()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
        seen.append(held.lasting_bytes)
    assert all(new - old >= 2 * 400 for old, new in itertools.pairwise(seen))


def test_what_is_converted_is_counted_anew():
    """A parameter stays the same object when its model is converted, in no part of a step too."""
    model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 3))
    held = HeldState(DropInOptions(budget=1, optimizer="adamw"))
    held.see(model.parameters())
    single = held.total_bytes
    model.double()
    held.see(model[0].parameters())
    scalars = 4 * 4  # of steps
    assert held.total_bytes == 2 * (single - scalars) + scalars


def test_a_record_is_not_closed_by_an_optimizer_that_steps_within_backward():
    """It would go on there: backward runs with a copy of the thread's state."""
    seen = []
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    handle = weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    close_later(lambda: seen.append(1) is None)
    weight.sum().backward()
    assert seen == []
    handle.remove()
    optimizer.step()
    assert seen == [1]


def test_states_of_optimizers_that_step_within_backward_are_known():
    """A record in which they were made is none to plan by: they are resident from then on."""
    model = torch.nn.Linear(10, 10, bias=False)
    held = HeldState(DropInOptions(budget=1))
    held.see(model.parameters())
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    assert held.in_backward_bytes == 0
    handle = model.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    model(torch.ones(1, 10)).sum().backward()
    assert held.in_backward_bytes == 2 * 400 + 4
    handle.remove()


def test_a_flat_buffer_that_holds_gradients_no_more_is_told_apart():
    """It counted as gradients, and the loop keeps it; gradients that are gone are none of it."""
    model = torch.nn.Linear(10, 10)
    held, flat = HeldState(DropInOptions(budget=1)), torch.zeros(110)
    held.see(model.parameters())
    model.weight.grad, model.bias.grad = flat[:100].view(10, 10), flat[100:]
    assert held.dropped_gradients() == []
    assert held.dropped_gradients() == []
    model.zero_grad()
    assert held.dropped_gradients() == [storage_key(flat)]
    model(torch.ones(1, 10)).sum().backward()
    assert held.dropped_gradients() == []
    model.zero_grad()
    assert held.dropped_gradients() == []


def test_no_record_begins_in_a_closure_after_one_was_closed():
    """The range of that step of the optimizer began under the closed record, and ends later."""
    weight, seen = torch.ones(2, requires_grad=True), []
    optimizer = torch.optim.SGD([weight])

    def closure():
        seen.append(may_record())
        return 0.0

    close_later(lambda: True)
    optimizer.step(closure)
    assert may_record()
    optimizer.step(closure)
    assert seen == [False, True]


def test_an_optimizer_is_foreseen_by_name():
    """Before its first step."""
    model = torch.nn.Linear(10, 10, bias=False)
    held = HeldState(DropInOptions(budget=1, optimizer="adamw"))
    held.see(model.parameters())
    assert held.total_bytes == 1200 + 4  # and the count of steps


def test_gradients_to_come_are_late_where_others_are_held():
    """As of an actor and a critic in turn, each zeroed before its own backward only."""
    actor, critic = torch.nn.Linear(10, 10), torch.nn.Linear(10, 20)
    held = HeldState(DropInOptions(budget=1))
    held.see([*actor.parameters(), *critic.parameters()])
    assert held.coming_gradient_bytes() == 440 + 880
    assert held.late_gradient_bytes() == 0
    critic(torch.ones(1, 10)).sum().backward()
    assert held.late_gradient_bytes() == 440
    actor(torch.ones(1, 10)).sum().backward()
    assert held.late_gradient_bytes() == 0


def test_a_state_that_was_loaded_is_counted_before_the_first_step():
    """As of a run that goes on from a checkpoint: its first step was over the budget by it."""
    model, other = torch.nn.Linear(10, 10), torch.nn.Linear(10, 10)
    states = []
    for it in (model, other):
        it(torch.ones(1, 10)).sum().backward()
        optimizer = torch.optim.Adam(it.parameters())
        optimizer.step()
        states.append(optimizer.state_dict())
        it.zero_grad()
        del optimizer
    held = HeldState(DropInOptions(budget=1))
    held.see(model.parameters())
    resumed, _ = (torch.optim.Adam(it.parameters()) for it in (model, other))
    resumed.load_state_dict(states[0])
    stepped_optimizers._changes.clear()  # as where that was before schedsim was imported
    assert held.total_bytes == 440
    held.look_for_optimizers()
    assert held.total_bytes == 440 + 2 * 440 + 2 * 4
    assert held.made_bytes == 2 * 440 + 2 * 4
    assert held.adam_bytes() == 0


def test_a_state_that_is_loaded_in_the_middle_of_a_run_is_counted_at_once():
    """Into an optimizer that was made meanwhile, and into one that has stepped without a state."""
    model = torch.nn.Linear(10, 10)
    held = HeldState(DropInOptions(budget=1))
    held.see(model.parameters())
    first = torch.optim.SGD(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    first.step()
    model.zero_grad()
    held.look_for_optimizers()
    assert held.total_bytes == 440
    momentum = {"momentum_buffer": torch.zeros(110)}
    loaded = {"state": {0: momentum}, "param_groups": [{"params": [0, 1], "lr": 0.1}]}
    first.load_state_dict(copy.deepcopy(loaded))
    assert held.total_bytes == 440 + 440
    second = torch.optim.SGD(model.parameters())
    second.load_state_dict(copy.deepcopy(loaded))
    del first
    gc.collect()
    held.look_for_optimizers()
    assert held.total_bytes == 440 + 440


def test_weights_that_are_tied_no_more_count_apart():
    """By their data: the parameters are the same objects, in the same form."""
    one, other = torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 10, bias=False)
    other.weight.data = one.weight.data
    held = HeldState(DropInOptions(budget=1))
    held.see([one.weight, other.weight])
    assert held.total_bytes == 400
    other.weight.data = other.weight.data.clone()
    held.see([one.weight, other.weight])
    assert held.total_bytes == 800
    one.weight.untyped_storage().resize_(0)
    held.see([one.weight, other.weight])
    assert held.total_bytes == 400


def test_parameters_of_an_optimizer_are_counted_where_no_graph_reads_them():
    """As of an embedding behind a graph break; those of a model that is trained apart are not."""
    model, other, late = (torch.nn.Linear(10, 10) for _ in range(3))
    embedding = torch.nn.Embedding(7, 10)
    held = HeldState(DropInOptions(budget=1))
    held.see(model.parameters())
    optimizer = torch.optim.SGD([*model.parameters(), *embedding.parameters()])
    apart = torch.optim.SGD(other.parameters())
    held.look_for_optimizers()
    assert held.total_bytes == 440 + 280
    later = torch.optim.SGD([*model.parameters(), *late.parameters()])
    later.step()
    apart.step()
    held.look_for_optimizers()
    assert held.total_bytes == 440 + 280 + 440
    optimizer.add_param_group({"params": list(other.parameters())})
    optimizer.step()
    held.look_for_optimizers()
    assert held.total_bytes == 440 + 280 + 440 + 440


def test_a_tensor_in_the_place_of_one_that_is_gone_is_another():
    """The model of a loop before is gone, and its addresses are those of the next model's."""
    held = HeldState(DropInOptions(budget=1))
    held.see([gone := torch.nn.Parameter(torch.ones(10))])
    known = held._tensors[id(gone)]
    del gone
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    held._tensors = {id(p): known for p in model.parameters()}
    assert held.device_of(optimizer) is None
    assert not held.has_gradient_for(optimizer)
    assert held.optimizers() == {}
    held.see(model.parameters())
    assert held.device_of(optimizer) == torch.device("cpu")
    assert held.has_gradient_for(optimizer)
    assert set(held.optimizers()) == {id(optimizer)}
