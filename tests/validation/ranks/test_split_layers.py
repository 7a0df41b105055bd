"""Split layers (tensor parallelism) op by op: in place, by the backend, and with FSDP2 around."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.drop_in.backend import session_of  # noqa: E402
from schedsim.validation.drop_in.in_place import session_in  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from spread_models import loss_of, made  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

MOST_STEPS, NUM_READ = 40, 3
TWO = ("tensor parallel", "sequence parallel", "spread between blocks", "loss parallel")


def _share(tensor):
    return getattr(tensor, "_local_tensor", tensor).detach()


def _same(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(_share(a.grad), _share(b.grad)) for a, b in pairs)


def _on_all(flag):
    found = torch.tensor([float(not flag)])
    torch.distributed.all_reduce(found)
    return not found.item()


def _read(model, step, session, kind):
    """(equal to the plain step to the bit, most measured bytes, planned, budget)."""
    plain, _, (x, target), loss = made(kind)
    plain.load_state_dict(model.state_dict())
    with loss_of(kind):
        loss(plain(x), target).backward()

        def one():
            model.zero_grad()
            loss(step(x), target).backward()

        for _ in range(MOST_STEPS):
            one()
            is_learning = getattr(session(), "is_learning", False)
            if _on_all(session().peak_bytes is not None and not is_learning):
                break
        measured = []
        for _ in range(NUM_READ):
            model.zero_grad()
            resident = storage_bytes([list(model.parameters()), x])
            [reading] = AllocatorMeter().read(one)
            measured.append(resident + reading.peak_bytes)
    return _same(model, plain), max(measured), session().peak_bytes, session().budget_bytes


def _in_place(kind, budget="88%"):
    torch.manual_seed(0)
    model, _, (x, _), _ = made(kind)
    schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2)
    found = _read(model, model, lambda: session_in(model), kind)
    note = session_in(model).check_note
    schedsim.restore(model)
    return *found, note


def _by_backend(kind):
    torch.manual_seed(0)
    model = made(kind)[0]
    options = {"budget": "88%", "effort": 0.2}
    step = torch.compile(model, backend="schedsim", options=options, dynamic=False)
    return *_read(model, step, lambda: session_of(options), kind), ""


def _of_two(_rank, way):
    return {kind: (_in_place if way == "in place" else _by_backend)(kind) for kind in TWO}


def _of_four(_rank):
    return {"split and sharded": _in_place("split and sharded")}


def check(rows):
    """Gradients are the plain step's to the bit, and peaks the predicted ones."""
    for is_same, measured, planned, budget, note in rows.values():
        assert is_same
        assert 0.99 * planned <= measured <= 1.001 * planned
        assert planned <= budget
        assert not note or note.startswith("outputs and gradients are the plain step's to the bit")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in place", "by the backend"])
def test_the_peaks_of_two_ranks_with_split_layers_are_the_predicted_ones(way):
    """Column- and row-wise layers, split sequences, shares between blocks, split logits."""
    for rows in run_ranks(_of_two, 2, way, timeout_s=400):
        check(rows)


@pytest.mark.slow
def test_the_peaks_of_four_ranks_with_split_and_sharded_layers_are_the_predicted_ones():
    """Two shards of two split ranks; the embedding's rows are looked up in parts."""
    for rows in run_ranks(_of_four, 4, timeout_s=400):
        check(rows)


def _trained(_rank, way, kind):
    torch.manual_seed(0)
    model, _, (x, target), loss = made(kind)
    plain = made(kind)[0]
    plain.load_state_dict(model.state_dict())
    if way == "in place":
        step = schedsim.rematerialize(model, x, "90%", in_place=True, effort=0.2)
    else:
        options = {"budget": "90%", "effort": 0.2}
        step = torch.compile(model, backend="schedsim", options=options, dynamic=False)
    for one, run in ((plain, plain), (model, step)):
        optimizer = torch.optim.AdamW(one.parameters())
        for _ in range(4):
            for _ in range(2):
                loss(run(x), target).backward()
            nn.utils.clip_grad_norm_(one.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        one.eval()
        with torch.no_grad():
            run(x)
        one.train()
    pairs = zip(plain.parameters(), model.parameters(), strict=True)
    return all(torch.equal(_share(a), _share(b)) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "kind", "num_ranks"),
    [
        ("in place", "tensor parallel", 2),
        ("by the backend", "sequence parallel", 2),
        ("in place", "split and sharded", 4),
    ],
)
def test_training_is_the_plain_one_to_the_bit(way, kind, num_ranks):
    """With accumulated gradients, clipping, AdamW and an evaluation."""
    assert all(run_ranks(_trained, num_ranks, way, kind, timeout_s=200))


def _with_fault(rank, way, fault):
    torch.manual_seed(0)
    model, _, (x, target), loss = made("tensor parallel")
    budget = 300_000 if fault == "budget" and rank else "90%"
    try:
        step = model
        if way == "in place":
            schedsim.rematerialize(model, x, budget, in_place=True, effort=0.2)
        else:
            options = {"budget": budget, "effort": 0.2}
            step = torch.compile(model, backend="schedsim", options=options, dynamic=False)
        for i in range(12 if fault == "budget" else 3):
            num = 128 if fault == "uneven" and rank and i == 2 else 256
            loss(step(x[:num]), target[:num]).backward()
    except Exception as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in place", "by the backend"])
@pytest.mark.parametrize("fault", ["uneven", "budget"])
def test_ranks_that_differ_all_fail_with_a_message(way, fault):
    """Another batch on one rank, or a budget that its step does not fit."""
    one, other = run_ranks(_with_fault, 2, way, fault, timeout_s=60)
    if fault == "budget":
        assert "does not fit 300.0 kB" in one
        assert "rank 1: " in one or "rank 1 failed to run a step: Infeasible" in one
        assert "does not fit 300.0 kB" in other
    elif way == "in place":
        assert one == other
        assert "rank 1 is given (128, 64) float32, while rank 0 is given (256, 64)" in one
    else:  # rank 1 traces another graph first
        assert "ranks do different things: rank 0: start a step, rank 1: trace a graph" in one
        assert "ranks do different things" in other


def _compiled(_rank):
    torch.manual_seed(0)
    model, _, (x, target), loss = made("tensor parallel")
    options = {"budget": "90%", "effort": 0.2, "compile": True}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss(torch.compile(model, backend="schedsim", options=options)(x), target).backward()
    return [str(one.message) for one in caught]


@pytest.mark.slow
def test_a_compiled_step_of_split_layers_runs_op_by_op():
    """With a line that says so."""
    for lines in run_ranks(_compiled, 2, timeout_s=100):
        assert any("run op by op and are not compiled" in line for line in lines)
