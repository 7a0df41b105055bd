"""Steps compiled by inductor: the budget bounds what is measured."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

from fused_steps import assert_close, branched, captured_step, dropped, gated, left_by  # noqa: E402
from schedsim.validation.compiled.compile_step import (  # noqa: E402
    CompileWarning,
    compiled_where_it_works,
)
from schedsim.validation.compiled.group import FusedGroup, Groups  # noqa: E402
from schedsim.validation.guards.differential import Difference  # noqa: E402
from schedsim.validation.whole_step import plan_maker  # noqa: E402
from schedsim.validation.whole_step.step_capture import BlockLevelWarning  # noqa: E402

import schedsim  # noqa: E402
from schedsim import Schedule  # noqa: E402
from schedsim.errors import InfeasibleBudgetError, UnsupportedError  # noqa: E402

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)


@pytest.fixture(scope="module")
def stepped():
    model, inputs, loss = dropped()
    module = schedsim.rematerialize(
        model, inputs, "100%", loss, compile=True, effort=1.0, time_limit_s=120.0
    )
    return model, inputs, loss, module


@pytest.mark.slow
@needs_compiler
def test_the_measured_peak_is_within_every_budget(stepped):
    """What was planned, where nothing has scratch; joined groups may hold a little less."""
    _, inputs, _, module = stepped
    most = module.plan.peak_bytes
    for share in (1.0, 0.9, 0.8):
        module.replan(int(share * most))
        planned = module.prepare(*inputs)
        assert planned.measured_bytes <= module.budget_bytes
        assert 0 <= planned.plan.peak_bytes - planned.measured_bytes < 0.005 * most
        assert "measured peak" in module.report()
    assert planned.captured.most_states_bytes == 0  # seeds are drawn once, and never replayed


@pytest.mark.slow
@needs_compiler
def test_numbers_are_those_of_torch_compile(stepped):
    """Dropout included, from the same seed; with groups run again too."""
    model, inputs, loss, module = stepped
    compiled = torch.compile(lambda x, t: loss(model(x), t))
    expected = left_by(compiled, model, inputs, seed=5)
    for share in ("100%", "80%"):
        module.replan(share)
        assert_close(left_by(module, model, inputs, seed=5), expected)
    other = left_by(module, model, inputs, seed=6)
    assert not torch.equal(other[0], expected[0])


class Beside(torch.nn.Module):
    """Branches with dropout, whose draws no data keeps in order, and integers that are drawn."""

    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.drops = torch.nn.ModuleList(torch.nn.Dropout(0.5) for _ in range(3))

    def forward(self, x):
        left = self.drops[0](self.left(x))
        right = self.drops[1](self.right(x)) * torch.randint(3, 9, x.shape)
        return self.drops[2](left + right) + torch.randint(2, x.shape, dtype=torch.int32)


@pytest.mark.slow
@needs_compiler
def test_numbers_of_branches_are_those_of_torch_compile():
    """As of an encoder and a decoder: seeds belong to draws in the order of the model."""
    torch.manual_seed(0)
    model, loss = Beside(), torch.nn.functional.mse_loss
    inputs = torch.randn(64, 8), torch.randn(64, 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, t: loss(model(x), t))
    expected = left_by(compiled, model, inputs, seed=5)
    module = schedsim.rematerialize(model, inputs, "100%", loss, compile=True, effort=0.1)
    assert_close(left_by(module, model, inputs, seed=5), expected)
    torch._dynamo.reset()


@pytest.mark.slow
@needs_compiler
def test_a_plan_file_remembers_that_it_is_compiled(stepped, tmp_path):
    model, inputs, loss, module = stepped
    schedsim.save(module.plan, tmp_path / "plan.json")
    again = schedsim.apply(model, tmp_path / "plan.json", inputs, loss)
    assert again.plan.setting.step.compiled
    assert_close(left_by(again, model, inputs), left_by(module, model, inputs))


@pytest.mark.slow
def test_a_compiler_that_fails_is_said(monkeypatch):
    """The step runs uncompiled, with a line."""

    def fails(self):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(Groups, "compile", fails)
    captured = captured_step(*gated(1))
    with pytest.warns(CompileWarning, match="runs uncompiled: RuntimeError: no compiler here"):
        found = compiled_where_it_works(captured)
    assert found.graph is captured.graph


def test_a_group_that_inductor_cannot_compile_runs_by_op(monkeypatch):
    """It alone, with a line; it writes over no input, because its own code has inner tensors."""
    names = []

    def fails_for_tanh(self, function):
        if any("tanh" in str(call.target) for call in self.calls):
            raise ValueError("an odd stride")
        names.append(self.__name__)
        return lambda tensors: function(*tensors)

    monkeypatch.setattr(FusedGroup, "compiled_as", fails_for_tanh)
    model, inputs, loss = dropped()
    captured = captured_step(model, inputs, loss)
    with pytest.warns(CompileWarning, match="ValueError: an odd stride .*tanh") as said:
        found = compiled_where_it_works(captured)
    groups = [c for c in found.program.calls if isinstance(c.target, FusedGroup)]
    by_op = [c for c in groups if c.target.by_op]
    assert len({c.target for c in by_op}) == len(said) > 0
    assert len(by_op) < len(groups)
    assert all(c.takes_over < 0 and c.target.__name__ not in names for c in by_op)
    module = found.module(Schedule.store_all(found.graph))
    module(*inputs).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_what_the_compiler_says_later_is_a_failure_of_its_group(monkeypatch):
    """C++ compilers run beside each other; a failure is known before the step is planned."""

    def fails_later(self):
        self.compile()

        def wait():
            if any("tanh" in str(call.target) for call in self.calls):
                raise ValueError("an odd kernel")

        return [wait]

    as_it_is = lambda self, function: lambda tensors: function(*tensors)  # noqa: E731
    monkeypatch.setattr(FusedGroup, "compiled_as", as_it_is)
    monkeypatch.setattr(FusedGroup, "begin", fails_later)
    captured = captured_step(*dropped())
    with pytest.warns(CompileWarning, match="ValueError: an odd kernel .*tanh"):
        found = compiled_where_it_works(captured)
    groups = {c.target for c in found.program.calls if isinstance(c.target, FusedGroup)}
    assert 0 < sum(group.by_op for group in groups) < len(groups)


def test_a_group_that_cannot_write_over_its_input_makes_a_new_output(monkeypatch):
    """Known before the step is planned, so that its bytes count; the step runs, with a line."""

    def fails_in_place(self, function):
        if function.__name__ == "_overwrite":
            tried.append(self)
            raise ValueError("an alias of an input")
        return lambda tensors: function(*tensors)

    tried: list[FusedGroup] = []
    model, inputs, loss = dropped()
    monkeypatch.setattr(FusedGroup, "compiled_as", fails_in_place)
    captured = captured_step(model, inputs, loss)
    with pytest.warns(CompileWarning, match="over no input, .*ValueError: an alias .*aten") as said:
        found = compiled_where_it_works(captured)
    assert len(said) == len({str(w.message) for w in said})
    groups = [c for c in found.program.calls if isinstance(c.target, FusedGroup)]
    assert tried
    assert not any(c.takes_over >= 0 or c.target.by_op for c in groups)
    module = found.module(Schedule.store_all(found.graph))
    module(*inputs).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.slow
def test_the_backend_says_that_there_is_no_compiler(monkeypatch):
    """Each part runs uncompiled within the budget, with one line each, and the loop goes on."""

    def fails(self, function):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(FusedGroup, "compiled_as", fails)
    torch._dynamo.reset()
    model, inputs, loss = gated(2)
    options = {"budget": "90%", "compile": True}
    module = torch.compile(model, backend="schedsim", options=options)
    with pytest.warns(CompileWarning, match="no compiler here") as said:
        found = left_by(lambda x, t: loss(module(x), t), model, inputs)
    assert all(
        "step runs uncompiled" in str(w.message) for w in said if w.category is CompileWarning
    )
    assert_close(found, left_by(lambda x, t: loss(model(x), t), model, inputs))


@pytest.mark.slow
def test_a_compiled_step_that_is_another_is_planned_by_blocks(uncompiled, monkeypatch):
    """Uncompiled, with a warning, and no refusal of what the caller did not ask for."""

    def compared(model, settings, planned, inputs, keywords):
        op = planned.captured.level == "op"
        return "", Difference("a gradient is off", False) if op else None

    monkeypatch.setattr(Groups, "compile", lambda self: None)
    monkeypatch.setattr(plan_maker, "kept_within", lambda m, s, planned, b, given: planned)
    monkeypatch.setattr(plan_maker, "compare", compared)
    model, inputs, loss = gated(2)
    with pytest.warns(BlockLevelWarning, match="op by op its step is another: a gradient is off"):
        module = schedsim.rematerialize(model, inputs, "100%", loss, compile=True, effort=0.2)
    assert module.prepare(*inputs).captured.level == "block"


def test_blocks_are_not_compiled():
    model, inputs, loss = gated(1)
    with pytest.raises(UnsupportedError, match="compile=True is of the op level"):
        schedsim.rematerialize(model, inputs, "100%", loss, level="block", compile=True)


def _least(model, inputs, loss, **options):
    with pytest.raises(InfeasibleBudgetError) as refused:
        schedsim.rematerialize(model, inputs, 1000, loss, level="op", effort=0.5, **options)
    return refused.value.plan.min_feasible_bytes


@pytest.mark.slow
def test_where_large_groups_do_not_fit_smaller_ones_are_planned(uncompiled, monkeypatch):
    """A refusal names the least budget of these, and the report says which groups run."""
    monkeypatch.setattr(plan_maker, "kept_within", lambda m, s, planned, b, given: planned)
    model, inputs, loss = branched()
    least = _least(model, inputs, loss, compile=True)
    module = schedsim.rematerialize(model, inputs, "100%", loss, compile=True, effort=0.5)
    assert "groups are small" not in module.report()
    module.replan(least)
    module.prepare(*inputs)
    assert "groups are small" in module.report()
    assert module.plan.peak_bytes <= least


@pytest.mark.slow
@needs_compiler
def test_smaller_groups_run_within_the_least_budget_of_the_ops(tmp_path):
    """Measured; and a plan of them is applied again."""
    model, inputs, loss = branched()
    budget = _least(model, inputs, loss)
    module = schedsim.rematerialize(model, inputs, budget, loss, compile=True, effort=0.5)
    planned = module.prepare(*inputs)
    assert planned.measured_bytes <= budget
    assert planned.captured.level == "op"
    assert "groups are small" in module.report()
    compiled = torch.compile(lambda x, t: loss(model(x), t))
    expected = left_by(compiled, model, inputs)
    assert_close(left_by(module, model, inputs), expected)
    schedsim.save(module.plan, tmp_path / "plan.json")
    again = schedsim.apply(model, tmp_path / "plan.json", inputs, loss)
    assert "groups are small" in again.report()
    assert_close(left_by(again, model, inputs), expected)
