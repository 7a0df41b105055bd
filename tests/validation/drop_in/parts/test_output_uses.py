"""What a loop drops of a model's outputs, and which of their gradients do not come."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.drop_in import backend  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.drop_in.parts.output_uses import OutputUse  # noqa: E402
from schedsim.validation.drop_in.plans.step_plans import StepPlans  # noqa: E402
from schedsim.validation.guards.plan_variants import PlainStepWarning, ReplannedWarning  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402
from schedsim.errors import InfeasibleBudgetError  # noqa: E402

WORDS = 600
LOGITS_BYTES = 64 * WORDS * 4


class Language(nn.Module):
    """A model whose logits are the largest tensor; it gives a loss, too, where it gets targets."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, WORDS, bias=False)

    def forward(self, words, targets=None):
        h = self.table(words)
        for layer in self.layers:
            h = h + torch.tanh(layer(h))
        logits = self.head(h)
        if targets is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, targets), "logits": logits}


def loss_inside_alone(model, words, steps):
    for _ in range(steps):
        model(words, words)["loss"].backward()
        model.zero_grad()


def loss_inside_outputs_held(model, words, steps):
    for _ in range(steps):
        out = model(words, words)
        out["loss"].backward()
        model.zero_grad()


def loss_outside_outputs_held(model, words, steps):
    for _ in range(steps):
        logits = model(words)["logits"]
        nn.functional.cross_entropy(logits * 2, words).backward()
        model.zero_grad()


def loss_outside_outputs_dropped(model, words, steps):
    for _ in range(steps):
        nn.functional.cross_entropy(model(words)["logits"] * 2, words).backward()
        model.zero_grad()


LOOPS = [
    loss_inside_alone,
    loss_inside_outputs_held,
    loss_outside_outputs_held,
    loss_outside_outputs_dropped,
]


def made():
    torch._dynamo.reset()
    torch.manual_seed(0)
    words = torch.randint(0, WORDS, (64,))
    return Language(), words


def resident_bytes(model, words):
    return storage_bytes([*model.parameters(), words])


def peak_bytes(loop, model, words, steps=3):
    [reading] = AllocatorMeter().read(lambda: loop(model, words, steps))
    return reading.peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_the_plan_counts_what_the_loop_holds_of_the_outputs_and_no_more(loop):
    """All steps run in one frame, so that a step begins beside the outputs of the one before."""
    model, words = made()
    plain = copy.deepcopy(model)
    given = (words, words) if "inside" in loop.__name__ else (words,)
    schedsim.rematerialize(model, given, "100%", in_place=True, effort=0.2)
    loop(model, words, 6)
    measured = resident_bytes(model, words) + peak_bytes(loop, model, words)
    session = session_in(model)
    assert measured <= session.peak_bytes <= session.budget_bytes
    assert session.peak_bytes < measured + LOGITS_BYTES // 8
    # Beside the plain step there is a note on the call.
    assert measured <= resident_bytes(plain, words) + peak_bytes(loop, plain, words) + 64
    loop(plain, words, 9)
    for mine, its in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.slow
def test_a_budget_that_only_a_loop_without_logits_fits_is_not_refused():
    model, words = made()
    plain = copy.deepcopy(model)
    budget = resident_bytes(plain, words) + peak_bytes(loss_inside_alone, plain, words) + 64
    del plain  # else it is there when the model gets its budget, which a line would say
    with pytest.warns(PlainStepWarning, match="in the call, .* which a loop may drop") as told:
        schedsim.rematerialize(model, (words, words), budget, in_place=True, effort=0.2)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_inside_alone(model, words, 6)
    measured = resident_bytes(model, words) + peak_bytes(loss_inside_alone, model, words)
    assert measured <= session_in(model).peak_bytes <= budget


@pytest.mark.slow
def test_a_loop_that_holds_outputs_from_some_step_on_is_planned_for():
    model, words = made()
    schedsim.rematerialize(model, (words, words), "200%", in_place=True, effort=0.2)
    loss_inside_alone(model, words, 5)
    before = session_in(model).peak_bytes
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was within the budget all the same
        loss_inside_outputs_held(model, words, 3)
    measured = resident_bytes(model, words) + peak_bytes(loss_inside_outputs_held, model, words)
    assert before < measured <= session_in(model).peak_bytes


@pytest.mark.slow
def test_a_loop_that_holds_outputs_beside_which_a_step_has_not_fitted_is_told():
    model, words = made()
    schedsim.rematerialize(model, (words, words), "100%", in_place=True, effort=0.2)
    loss_inside_alone(model, words, 5)
    with pytest.warns(ReplannedWarning, match="holds more of the outputs"):
        loss_inside_outputs_held(model, words, 3)


@pytest.mark.slow
def test_outputs_that_a_list_keeps_are_counted_as_long_as_they_are_there():
    model, words = made()
    schedsim.rematerialize(model, (words, words), "300%", in_place=True, effort=0.2)
    held = []

    def loop(model, words, steps):
        for _ in range(steps):
            out = model(words, words)
            out["loss"].backward()
            model.zero_grad()
            held.append(out["logits"])
            del held[:-2], out

    loop(model, words, 7)
    # Two older outputs are there before the record begins, which does not see them.
    measured = resident_bytes(model, words) + peak_bytes(loop, model, words, 1) + 2 * LOGITS_BYTES
    assert measured <= session_in(model).peak_bytes + LOGITS_BYTES // 8


@pytest.mark.slow
def test_what_grows_from_step_to_step_is_planned_for_ahead(monkeypatch):
    """A loop that appends to a list waits for a few plans, and not for one a step."""
    planned = []
    plan_steps = StepPlans._plan_steps

    def noted(self):
        planned.append(self.known.resident.now.resident_bytes)
        plan_steps(self)

    monkeypatch.setattr(StepPlans, "_plan_steps", noted)
    model, words = made()
    schedsim.rematerialize(model, (words, words), "100%", in_place=True, effort=0.2)

    def loop(held):
        for _ in range(40):
            out = model(words, words)
            out["loss"].backward()
            model.zero_grad()
            held.append(out["logits"])
            del out

    with pytest.warns(ReplannedWarning, match="outputs of earlier steps are still there"):
        loop([])
    assert 4 <= len(planned) <= 12
    assert planned == sorted(planned)
    assert planned[-1] >= storage_bytes([*model.parameters()]) + 38 * LOGITS_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["100%", "87%"])
def test_an_output_that_its_own_backward_reads_is_gone_after_that(budget):
    """The tanh at the end reads its output, and the layers before it do not."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, target = torch.randn(2, 256, 64)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2)

    def loop(model, x, steps):
        for _ in range(steps):
            model.zero_grad()
            nn.functional.mse_loss(model(x), target).backward()

    loop(model, x, 4)
    measured = resident_bytes(model, x) + peak_bytes(loop, model, x)
    assert measured <= session_in(model).peak_bytes <= session_in(model).budget_bytes
    assert session_in(model).peak_bytes <= 1.01 * measured


def test_what_two_uses_have_in_common():
    one = OutputUse(frozenset({0, 1}), frozenset({2}))
    other = OutputUse(frozenset({1, 3}), frozenset())
    assert one.common(other) == OutputUse(frozenset({1}), frozenset())
    assert one.covers(one.common(other))
    assert not one.common(other).covers(one)
    held = OutputUse(kept=frozenset({0}))  # a gradient that the loop holds takes memory
    assert held.common(OutputUse()) == held
    assert OutputUse().covers(held)
    assert not held.covers(OutputUse())


@pytest.mark.slow
def test_the_least_use_keeps_single_numbers():
    """A loop holds its loss, whose gradient comes; of a part without a loss all gradients come."""
    model, words = made()
    schedsim.rematerialize(model, (words, words), "100%", in_place=True, effort=0.2)
    (part,) = session_in(model).parts
    values, program = part.program.values, part.program
    large = {i for i, v in enumerate(program.held) if len(values[v].shape) > 0}
    assert len(large) == 1
    assert part.outputs.guess().dropped == large
    assert len(part.outputs.guess().lacking) == 1
    unread = part.outputs.unread()
    assert {i for i in unread if i in large} == set()  # the loss inside reads the logits
    model, words = made()
    schedsim.rematerialize(model, (words,), "100%", in_place=True, effort=0.2)
    (part,) = session_in(model).parts
    assert part.outputs.guess() == OutputUse(frozenset({0}), frozenset())
    assert part.outputs.unread() == {0}


class TwoOutputs(Language):
    """A model with two outputs, whose losses its loop takes in turns."""

    def forward(self, words):
        h = self.table(words)
        return self.head(torch.tanh(self.layers[0](h))), h * 2


@pytest.mark.slow
@pytest.mark.parametrize("turns", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_steps_in_turns_with_other_code_between_halves_are_all_measured(turns):
    def loop(model, words, steps):
        for i in range(steps):
            large, small = model(words)
            (large if i % turns == turns - 1 else small).pow(2).mean().backward()
            model.zero_grad()

    made()
    model, words = TwoOutputs(), torch.randint(0, WORDS, (64,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReplannedWarning)
        schedsim.rematerialize(model, (words,), "100%", in_place=True, effort=0.2)
        loop(model, words, 18)
    measured = resident_bytes(model, words) + peak_bytes(loop, model, words, 2 * turns)
    assert measured <= session_in(model).peak_bytes <= session_in(model).budget_bytes


@pytest.mark.slow
def test_outputs_of_an_evaluation_that_the_loop_holds_are_counted():
    def loop(model, words, steps):
        for _ in range(steps):
            model(words, words)["loss"].backward()
            model.zero_grad()
            with torch.no_grad():
                held = model(words, words)
        return held

    model, words = made()
    schedsim.rematerialize(model, (words, words), "100%", in_place=True, effort=0.2)
    loop(model, words, 6)
    measured = resident_bytes(model, words) + peak_bytes(loop, model, words)
    assert measured <= session_in(model).peak_bytes + 8  # a loss of the step before
    assert session_in(model).peak_bytes <= session_in(model).budget_bytes


@pytest.mark.slow
def test_a_share_is_one_of_the_largest_step_where_a_backward_does_not_come():
    """The loop holds the outputs of such a step, and with them its graph, in the next forward."""

    def loop(model, words, steps):
        for i in range(steps):
            out = model(words, words)
            if i % 3 != 2:
                out["loss"].backward()
                model.zero_grad()

    model, words = made()
    plain = copy.deepcopy(model)
    schedsim.rematerialize(model, (words, words), "100%", in_place=True, effort=0.2)
    loop(model, words, 7)
    loop(plain, words, 7)
    for mine, its in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.slow
def test_a_share_is_one_of_what_the_code_outside_takes_where_that_is_more():
    """The backward of what has made the model's input runs after the model's own."""
    torch._dynamo.reset()
    model, given = nn.Linear(16, 16), torch.randn(64, 16, requires_grad=True)

    def loop(steps):
        for _ in range(steps):
            made = given.repeat(1, 200).sin().view(64, 200, 16).mean(1)
            model(made).pow(2).mean().backward()
            model.zero_grad()

    schedsim.rematerialize(model, (given,), "100%", in_place=True, effort=0.2)
    loop(4)
    session = session_in(model)
    assert 64 * 200 * 16 * 4 < session.peak_bytes <= session.budget_bytes


@pytest.mark.slow
def test_a_backward_that_reads_a_dropped_output_frees_it_after_the_last_read():
    def loop(model, words, steps):
        for _ in range(steps):
            (model(words, words)["loss"] + model(words, words)["loss"]).backward()
            model.zero_grad()

    model, words = made()
    schedsim.rematerialize(model, (words, words), 760000, in_place=True, effort=0.2)
    loop(model, words, 6)
    measured = resident_bytes(model, words) + peak_bytes(loop, model, words)
    assert measured <= session_in(model).peak_bytes <= session_in(model).budget_bytes


@pytest.mark.slow
def test_a_compiled_step_whose_logits_get_zeros_is_refused_before_its_first_step(uncompiled):
    """No hope that gradients lack: of a compiled step they come as zeros."""
    words, least = torch.randint(WORDS, (64,)), 1000
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReplannedWarning)
        for _ in range(3):
            torch._dynamo.reset()
            model = Language()
            options = {"budget": least, "compile": True, "effort": 0.2}
            step = torch.compile(model, backend=backend.schedsim, options=options)
            try:
                loss_inside_alone(step, words, 3)
                break
            except InfeasibleBudgetError as error:
                least = error.plan.min_feasible_bytes
        else:
            pytest.fail("no budget that a refusal named was enough")


@pytest.mark.slow
@pytest.mark.parametrize("holds", [True, False])
def test_a_gradient_that_the_loop_gives_and_holds_is_there_to_the_end(holds):
    """As `features.backward(gradient)`, where heads have made the gradient by themselves."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [it for _ in range(4) for it in (nn.Linear(64, 64), nn.GELU())]
    model, x = nn.Sequential(*layers, nn.Linear(64, 64)), torch.randn(512, 64)

    def loop(model, x, steps):
        for _ in range(steps):
            features = model(x)
            if holds:
                features.backward(features.detach() * 2)
            else:
                features.square().sum().backward()
            model.zero_grad()

    schedsim.rematerialize(model, (x,), 1_050_000, in_place=True, effort=0.2)
    loop(model, x, 4)
    measured = resident_bytes(model, x) + peak_bytes(loop, model, x)
    assert measured <= session_in(model).peak_bytes <= session_in(model).budget_bytes
    assert session_in(model).parts[0].use.kept == ({0} if holds else frozenset())
