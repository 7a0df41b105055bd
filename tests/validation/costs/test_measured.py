"""Times and workspaces of ops, measured: each distinct op once, from the cache afterwards."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from costed_steps import two_layers  # noqa: E402
from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.capture.program import Call, Program, Ref, Storage, Value  # noqa: E402
from schedsim.validation.costs import measured as measuring  # noqa: E402
from schedsim.validation.costs import measured_costs  # noqa: E402
from schedsim.validation.costs.cache import SCHEMA  # noqa: E402
from step_models import make_step  # noqa: E402

from schedsim import Schedule, simulate  # noqa: E402
from schedsim.errors import SchedsimError  # noqa: E402


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_each_distinct_op_is_measured_once(monkeypatch):
    """The two addmm are one op of one shape; views and the hand-over to autograd cost nothing."""
    captured = two_layers()
    measured = []
    original = measuring.measure_call

    def note(program, call, device, target_s):
        measured.append(call.name)
        return original(program, call, device, target_s)

    monkeypatch.setattr(measuring, "measure_call", note)
    costs = measured_costs(captured, "cpu", target_s=0.0)
    assert "0.addmm" in measured
    assert "2.addmm" not in measured
    assert costs.time_s["0.addmm"] == costs.time_s["2.addmm"] > 0
    assert costs.time_s["loss.grad"] == 0
    assert set(costs.time_s) == set(captured.graph.op_names)
    # Again: everything comes from the cache, in another process too.
    measured.clear()
    assert measured_costs(captured, "cpu").time_s == costs.time_s
    assert measured == []
    graph = captured.with_costs(costs).graph
    assert simulate(graph, Schedule.store_all(graph)).makespan_s == pytest.approx(
        sum(costs.time_s.values())
    )


def test_the_cache_is_keyed_by_environment(own_cache, monkeypatch):
    """Another number of threads is another file; a broken file is measured anew."""
    captured = two_layers()
    measured_costs(captured, "cpu", target_s=0.0)
    (file,) = (own_cache / "profiles").iterdir()
    file.write_text("not json")
    measured_costs(captured, "cpu", target_s=0.0)
    assert json.loads(file.read_text())["schema"] == SCHEMA
    changed = dict(measuring.environment(torch.device("cpu")), threads="999")
    monkeypatch.setattr(measuring, "environment", lambda device: changed)
    measured_costs(captured, "cpu", target_s=0.0)
    assert len(list((own_cache / "profiles").iterdir())) == 2


def test_workspaces_are_from_the_allocators_record():
    """A convolution's backward lays its operands out anew; a ReLU needs nothing."""
    model, inputs, loss = make_step("resnet")
    captured = capture(model, inputs, loss)
    costs = measured_costs(captured, "cpu", target_s=0.0)
    assert costs.workspace_bytes["blocks.0.relu.relu"] == 0
    convolutions = [n for n in costs.workspace_bytes if n.startswith("grad") and "convolution" in n]
    assert any(costs.workspace_bytes[name] > 0 for name in convolutions)
    graph = captured.with_costs(costs).graph
    name = max(convolutions, key=costs.workspace_bytes.__getitem__)
    op = graph.ops[graph.op_index(name)]
    assert op.workspace_bytes == costs.workspace_bytes[name]
    assert costs.size_bytes == {}  # tracing had every output right


def test_measuring_leaves_the_generator_alone():
    model, inputs, loss = make_step("mlp")
    captured = capture(model, inputs, loss)
    before = torch.get_rng_state()
    measured_costs(captured, "cpu", target_s=0.0)
    assert torch.equal(before, torch.get_rng_state())


def test_the_wrong_device_is_refused():
    with pytest.raises(SchedsimError, match="cannot be measured on cuda"):
        measured_costs(two_layers(), "cuda")


def test_runs_end_when_they_are_enough():
    """Five, or as many as the target takes; three of an op of seconds; a thousand at most."""
    enough = measuring._is_enough
    assert not enough(4, 0.5, 0.02)
    assert enough(5, 0.5, 0.02)
    assert not enough(5, 0.01, 0.02)
    assert enough(1000, 0.01, 0.02)
    assert [enough(n, 1.1, 0.02) for n in (2, 3)] == [False, True]
    assert not enough(3, 0.9, 0.02)


def test_indices_are_spread_over_the_rows_that_there_are():
    """Indices into a table, its gradient, the places of a pool; elsewhere zeros."""
    table = torch.nn.Embedding(7, 4)
    ids = torch.randint(7, (3,))
    captured = capture(table, (ids,), lambda out: out.square().sum())
    bounds = {
        call.name: measuring._index_bound(captured.program, call) for call in captured.program.calls
    }
    assert [bound for name, bound in bounds.items() if "embedding" in name] == [7, 7]
    assert {bound for name, bound in bounds.items() if "embedding" not in name} == {0}


def test_the_workspace_is_the_highest_balance_beyond_what_is_left(monkeypatch):
    """In the allocator's record 8 and 4 bytes come, 8 go, 2 come and stay."""
    record = [8, 4, -8, 2]
    monkeypatch.setattr(measuring, "allocations", lambda run: record)
    assert measuring._cpu_workspace(lambda: None) == 12 - 6


def test_times_from_the_cache_say_how_old_they_are(monkeypatch):
    """And are measured again where that is asked for; what is measured then is kept."""
    captured = two_layers()
    assert measured_costs(captured, "cpu", target_s=0.001).notes == ()
    later = measuring.time.time() + 7200
    monkeypatch.setattr(measuring.time, "time", lambda: later)
    (note,) = measured_costs(captured, "cpu", target_s=0.001).notes
    assert note.startswith("times of ")
    assert "measured 2 hours ago, spread " in note
    assert note.endswith("--remeasure measures them again")
    assert note in captured.with_costs(measured_costs(captured, "cpu")).notes
    again = measured_costs(captured, "cpu", use_cache=False, target_s=0.001)
    assert again.notes == ()
    assert measured_costs(captured, "cpu").time_s == again.time_s


def test_entries_of_a_form_that_is_not_known_are_measured_again(own_cache):
    """Entries of another version, or edited by hand: never a crash, never believed."""
    captured = two_layers()
    first = measured_costs(captured, "cpu", target_s=0.0)
    (file,) = (own_cache / "profiles").iterdir()
    document = json.loads(file.read_text())
    good = document["entries"]
    for change in (
        lambda entry: entry[:3],
        lambda entry: {"time_s": entry[0]},
        lambda entry: ["1", *entry[1:]],
        lambda entry: [-1.0, *entry[1:]],
        lambda entry: [*entry[:2], None, *entry[3:]],
        lambda entry: [*entry[:2], [*entry[2], 8], *entry[3:]],
        lambda entry: [*entry[:2], [0.5] * len(entry[2] or [1]), *entry[3:]],
        lambda entry: None,
    ):
        document["entries"] = {key: change(entry) for key, entry in good.items()}
        file.write_text(json.dumps(document))
        again = measured_costs(captured, "cpu", target_s=0.0)
        assert (set(again.time_s), again.notes) == (set(first.time_s), ())


@pytest.mark.parametrize("batch", [(), (3,)])
def test_an_op_with_pivots_is_measured(own_cache, batch):
    """Made-up ones are valid, of one matrix and of several: a solver refuses others."""

    class Flow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = torch.nn.Parameter((torch.eye(4) + 0.1).expand(*batch, 4, 4).clone())

        def forward(self, x):
            return (x @ self.mix).sum() + torch.linalg.slogdet(self.mix)[1].sum()

    captured = capture(Flow(), (torch.ones(2, 4),), lambda y: y)
    assert any("lu_solve" in str(call.target) for call in captured.program.calls)
    costs = measured_costs(captured, "cpu", target_s=0.0)
    assert all(size >= 0 for size in costs.workspace_bytes.values())


class Factor(torch.nn.Module):
    """Has the factor of a positive definite matrix."""

    def __init__(self):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.eye(6) * 8)

    def forward(self, x):
        return torch.cholesky(self.matrix @ self.matrix.T + x)


@pytest.mark.skipif(
    not hasattr(torch.ops.aten, "cholesky"), reason="torch 2.15 has no such op any longer"
)
def test_a_factor_is_measured_of_a_matrix_that_has_one():
    """Random numbers are seldom such a matrix, and the op raises for others."""
    captured = capture(Factor(), (torch.eye(6),), lambda out: out.sum())
    assert any("cholesky" in name for name in captured.graph.op_names)
    measured_costs(captured, "cpu", target_s=0.0)


class _Drawing:
    """Stands for an attention on a CUDA device, whose backward gets what its dropout has drawn."""

    def __call__(self, x):
        return x.clone(), torch.tensor(7), torch.tensor(9)

    def __str__(self):
        return "aten._scaled_dot_product_some_attention.default"


def test_what_an_attention_has_drawn_is_from_a_run_of_it():
    """Kernels read such numbers on the host: a made-up tensor on the device ended the process."""
    cpu, number = torch.device("cpu"), ((), (), torch.int64)
    forms = [((4,), (1,), torch.float32)] * 2 + [number] * 3
    program = Program(
        values=[
            Value(i, *form, cpu, -1 if i == 0 else 0 if i < 4 else 1, max(0, i - 1))
            for i, form in enumerate(forms)
        ],
        storages=[Storage(16 if i < 2 else 8, "computed", 0) for i in range(5)],
        calls=[
            Call("attention", _Drawing(), (Ref(0),), {}, outputs=[1, 2, 3], is_tuple=True),
            Call("backward", torch.add, (Ref(1), Ref(2), Ref(3)), {}, outputs=[4]),
        ],
        inputs={0: 0},
    )
    make = measuring.made_up_tensors(program, program.calls[1], cpu)
    assert (int(make(2)), int(make(3))) == (7, 9)
    assert make(1).shape == (4,)
    program.calls[0].target = torch.sort  # no attention: its numbers are made up, as any
    assert int(measuring.made_up_tensors(program, program.calls[1], cpu)(2)) == 0
