"""Loops around models that FSDP2 shards and the backend plans: as torchtitan's, and other ones."""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from rank_processes import run_ranks  # noqa: E402
from schedsim.validation.drop_in.backend import SESSIONS, session_of  # noqa: E402
from schedsim.validation.measure import AllocatorMeter, storage_bytes  # noqa: E402
from schedsim.validation.models.llama import LlamaBlock  # noqa: E402
from schedsim.validation.ranks.last_words import speak  # noqa: E402
from spread_models import WIDTH, Around, Block  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import schedsim  # noqa: E402

VOCAB, SEQ = 100, 64


def share(tensor):
    """This rank's part of `tensor`."""
    return getattr(tensor, "_local_tensor", tensor).detach()


def same(one, other):
    """Whether the shares of all parameters are equal to the bit."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(share(a), share(b)) for a, b in pairs)


def sharded(options=None, block=Block, model=Around, root=True, form="blocks"):
    """(a model whose blocks and root are sharded, what a loop calls); compiled with `options`."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    found = model(block)
    for layer in found.layers:
        if options is not None and form == "blocks":
            layer.compile(backend="schedsim", options=dict(options))  # equal options, not the same
        fully_shard(layer)
    if root:
        fully_shard(found)
    if options is None or form == "blocks":
        return found, found
    return found, torch.compile(found, backend="schedsim", options=options)


def batch(rank, number):
    """Inputs and targets of a step, which the ranks do not share."""
    numbers = torch.Generator().manual_seed(10 * number + rank)
    return [torch.randint(VOCAB, (256,), generator=numbers) for _ in range(2)]


def train(model, run, rank, steps, optimizer=None, loss=cross_entropy):
    """Steps of AdamW; the optimizer."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in steps:
        x, target = batch(rank, number)
        loss(run(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


class Decoder(nn.Module):
    """A Llama as torchtitan has it: blocks in a table of modules, norm and output behind them."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, WIDTH)
        made = (LlamaBlock(WIDTH, 4, 2, 2 * WIDTH, 1e4) for _ in range(4))
        self.layers = nn.ModuleDict({str(i): block for i, block in enumerate(made)})
        self.norm, self.output = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def init_weights(self):
        """Fill what was made on the meta device."""
        for module in self.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(self, tokens):
        """Logits."""
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x))


def _tokens(rank, number):
    numbers = torch.Generator().manual_seed(10 * number + rank)
    tokens = torch.randint(VOCAB, (4, SEQ + 1), generator=numbers)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _loss(pred, labels):
    return cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1))


def _titan_model(options):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with torch.device("meta"):
        model = Decoder()
    loss = _loss
    if options is not None:
        for block in model.layers.values():
            block.compile(backend="schedsim", fullgraph=True, options=options)
        loss = torch.compile(_loss, backend="schedsim", options=options)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks = list(model.layers.values())
    fully_shard(model.tok_embeddings, mp_policy=policy)
    for block in blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard([model.norm, model.output], mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    model.init_weights()
    return model, loss


def _micro_batch(model, loss, tokens, labels):
    pred = model(tokens)
    its = loss(pred, labels) / 2
    del pred
    its.backward()
    return its.detach().clone()


def _titan(rank, model, loss, steps, optimizer, scheduler):
    """Losses and gradient norms of a loop with a warm-up, micro-batches, clipping, validation."""
    said = []
    for step in steps:
        optimizer.zero_grad()
        for k in range(2):
            said.append(_micro_batch(model, loss, *_tokens(rank, 2 * step + k)))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        said.append(norm.full_tensor())
        optimizer.step()
        scheduler.step()
        if step % 4 == 3:
            model.eval()
            with torch.no_grad():
                said.append(_loss(model(_tokens(rank, 99)[0]), _tokens(rank, 99)[1]))
            model.train()
    return said


def _optimizer(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 4))
    return optimizer, warm_up


def _as_torchtitan(rank, budget):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    folders = [tempfile.mkdtemp() if rank == 0 else None]
    torch.distributed.broadcast_object_list(folders, 0)
    plain, loss = _titan_model(None)
    expected = _titan(rank, plain, loss, range(12), *_optimizer(plain))

    options = {"budget": budget, "effort": 0.2, "extra_bytes": 4 * SEQ * 8}  # the labels
    model, loss = _titan_model(options)
    optimizer, scheduler = _optimizer(model)
    found = _titan(rank, model, loss, range(6), optimizer, scheduler)
    own, states = get_state_dict(model, optimizer)
    dcp.save({"model": own, "optimizer": states}, checkpoint_id=folders[0])
    found += _titan(rank, model, loss, range(6, 12), optimizer, scheduler)
    equal = same(model, plain)
    equal &= all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))

    session, report, measured = session_of(options), schedsim.drop_in_report(model), []
    for number in range(4):
        if number % 2 == 0:  # two micro-batches, of which the second finds gradients
            optimizer.zero_grad()
        tokens, labels = _tokens(rank, number)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        held = [list(model.parameters()), gradients, dict(optimizer.state), tokens, labels]
        before = storage_bytes(held)
        del gradients, held
        [reading] = AllocatorMeter().read(partial(_micro_batch, model, loss, tokens, labels))
        measured.append(before + reading.peak_bytes)
    peak, budget = session.peak_bytes, session.budget_bytes

    resumed, loss_again = _titan_model(options)
    second, warm_up = _optimizer(resumed)
    own, states = get_state_dict(resumed, second)
    state = {"model": own, "optimizer": states}
    dcp.load(state, checkpoint_id=folders[0])
    set_state_dict(
        resumed, second, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    warm_up.load_state_dict({**scheduler.state_dict(), "last_epoch": 6})
    _titan(rank, resumed, loss_again, range(6, 12), second, warm_up)
    equal_again = same(resumed, plain)
    if rank == 0:
        shutil.rmtree(folders[0])
    return equal, equal_again, max(measured), peak, budget, report


@pytest.mark.slow
def test_a_loop_like_torchtitans_is_the_plain_one_within_its_budget():
    """Meta device, mixed precision, compiled blocks and loss, clipping, warm-up, checkpoints.

    Losses, norms of gradients and parameters are those of the plain loop to the bit, after
    resuming, too.
    """
    for bits, again, measured, peak, budget, report in run_ranks(
        _as_torchtitan, 2, "95%", timeout_s=300
    ):
        assert bits
        assert again
        assert 0.99 * peak <= measured <= peak <= budget
        assert "on this rank" in report


# -- what lies around the model -------------------------------------------------------------------


def _around(rank, way):
    options = {"budget": "90%", "effort": 0.2}
    model, _ = sharded(options)
    plain, _ = sharded()
    run, loss = model, cross_entropy
    if way == "a compiled loss":
        loss = torch.compile(
            lambda y, t: cross_entropy(y.float(), t), backend="schedsim", options=dict(options)
        )
    if way == "a compiled step":
        model, _ = sharded()
        whole = torch.compile(
            lambda x, t: cross_entropy(model(x), t), backend="schedsim", options=options
        )
        run, loss = lambda x: x, whole
    if way == "evaluated first":
        for it in (model, plain):
            it.eval()
            with torch.no_grad():
                it(batch(rank, 0)[0][:64])
            it.train()
    if way == "without a root":
        model, run = sharded(options, root=False)
        plain, _ = sharded(root=False)
    if way == "after plain steps":
        model, _ = sharded()
        run = torch.compile(model, backend="schedsim", options=options)
        for it in (model, plain):
            it.set_requires_gradient_sync(False)
            cross_entropy(it(batch(rank, 0)[0]), batch(rank, 0)[1]).backward()
            it.set_requires_gradient_sync(True)
    train(model, run, rank, range(10), loss=loss)
    train(plain, plain, rank, range(10))
    session, x, target = session_of(options), *batch(rank, 0)
    model.zero_grad()
    resident = storage_bytes([list(model.parameters()), x])
    [reading] = AllocatorMeter().read(lambda: loss(run(x), target).backward())
    peak = session.peak_bytes
    if way == "without a root":  # what the model is given is not known there
        resident -= storage_bytes(x)
    return same(model, plain), resident + reading.peak_bytes, peak, session.budget_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "a compiled loss",
        "a compiled step",
        "evaluated first",
        "without a root",
        "after plain steps",
    ],
)
def test_what_lies_around_a_sharded_model_is_part_of_its_steps(way):
    """Steps are the plain ones to the bit, and within the budget."""
    for equal, measured, peak, budget in run_ranks(_around, 2, way, timeout_s=100):
        assert equal
        assert measured <= peak <= budget


class Checkpointed(nn.Module):
    """A block that a checkpoint around it computes again."""

    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        """Same shape."""
        return checkpoint(self.block, x, use_reentrant=False)


def _checkpointed(rank):
    options = {"budget": "1GiB", "effort": 0.2}
    model, _ = sharded(block=Checkpointed)
    plain, _ = sharded(block=Checkpointed)
    for layer in model.layers:
        layer.block.compile(backend="schedsim", options=options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, model, rank, range(5))
    train(plain, plain, rank, range(5))
    return same(model, plain), [str(it.message) for it in caught]


@pytest.mark.slow
def test_a_checkpoint_around_compiled_blocks_is_told_of():
    """Steps are the plain ones; the error by which a checkpoint stops is no failure of a rank."""
    for equal, lines in run_ranks(_checkpointed, 2, timeout_s=100):
        assert equal
        assert [it for it in lines if "schedules recompute what the budget needs" in it] == lines


def _critic_steps(rank, generator, critic):
    optimizers = [torch.optim.AdamW(it[0].parameters(), lr=1e-2) for it in (generator, critic)]
    for number in range(14):
        x, _ = batch(rank, number)
        with torch.no_grad():
            made, scores = generator[1](x), critic[1](x)
        critic[1](made.argmax(1)).square().mean().backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        (generator[1](x) * scores).square().mean().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()


def _two_models(rank):
    options = {"budget": "95%", "effort": 0.2}
    models, plain = [sharded(options) for _ in range(2)], [sharded() for _ in range(2)]
    _critic_steps(rank, *models)
    _critic_steps(rank, *plain)
    sessions = [SESSIONS.for_model(model) for model, _ in models]
    equal = all(same(a, b) for (a, _), (b, _) in zip(models, plain, strict=True))
    peak, budget = sessions[0].peak_bytes, sessions[0].budget_bytes
    return equal, sessions[0] is sessions[1], peak, budget


@pytest.mark.slow
def test_two_sharded_models_share_a_budget():
    """With equal options, though both run one graph of Dynamo's."""
    for equal, are_one, peak, budget in run_ranks(_two_models, 2, timeout_s=100):
        assert equal
        assert are_one
        assert peak <= budget


def _different(_rank):
    model, _ = sharded()
    for number, layer in enumerate(model.layers):
        layer.compile(backend="schedsim", options={"budget": f"{90 + number}%"})
    try:
        model(batch(0, 0)[0])
    except Exception as error:
        return str(error)
    return None


@pytest.mark.slow
def test_blocks_with_different_options_are_refused():
    """They are parts of one step: a line names what differs."""
    for said in run_ranks(_different, 2, timeout_s=60):
        assert "budget='90%' and budget='91%'" in said
        assert "give all of its blocks the same options" in said


# -- ranks that differ, or fail -------------------------------------------------------------------


def _budgets(rank):
    options = {"budget": "100%" if rank else "88%", "effort": 0.2}
    model, run = sharded(options)
    plain, _ = sharded()
    train(model, run, rank, range(10))
    train(plain, plain, rank, range(10))
    session = session_of(options)
    return same(model, plain), session.peak_bytes, session.budget_bytes


@pytest.mark.slow
def test_ranks_follow_plans_of_their_own():
    """With budgets that differ, one recomputes more, among the same collectives."""
    (one, peak, budget), (other, other_peak, other_budget) = run_ranks(_budgets, 2, timeout_s=100)
    assert one
    assert other
    assert peak <= budget < other_peak <= other_budget


class Picky(Block):
    """A block that looks something up, which may not be there."""

    def __init__(self):
        super().__init__()
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x):
        """Same shape."""
        return super().forward(x) + x[:, self.at]


class Moody(Around):
    """A model that may raise behind its blocks."""

    is_angry = False

    def forward(self, ids):
        """Logits."""
        found = super().forward(ids)
        if self.is_angry:
            raise ValueError("the head is angry")
        return found


def _with_fault(rank, form, fault):
    options = {"budget": 300_000 if fault == "budget" and rank else "90%", "effort": 0.2}
    begun = time.monotonic()
    try:
        model, run = sharded(options, Picky if fault == "graph" else Block, Moody, form=form)
        for number in range(10):
            x, target = batch(rank, number)
            fails = rank == 1 and number == 5
            if fails and fault == "graph":
                model.layers[1].at.fill_(1000)
            model.is_angry = fails and fault == "model"
            with torch.set_grad_enabled(not (fails and fault == "evaluates")):
                found = run(x)
            if fails and fault == "loss":
                raise KeyError("no such class")
            cross_entropy(found, target).backward()
    except Exception as error:
        speak(error)  # as where it leaves the loop, and ends the process
        return str(error), time.monotonic() - begun
    return None


SAID = {
    "budget": "rank 1: a step of 4 parts does not fit 300.0 kB",
    "graph": "rank 1 failed to run a step: IndexError: index 1000 is out of bounds",
    "model": "rank 1 ended by ValueError: the head is angry",
    "loss": "rank 1 ended by KeyError: 'no such class'",
    "evaluates": "rank 1 runs without gradients, while rank 0 trains",
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["blocks", "whole"])
@pytest.mark.parametrize("fault", list(SAID))
def test_a_rank_that_fails_ends_the_steps_of_all(form, fault):
    """Each rank with a line that says who failed, and how; none hangs, or the test is too slow."""
    (told, _), (own, _) = run_ranks(_with_fault, 2, form, fault, timeout_s=60)
    assert SAID[fault] in told
    assert own


def _freed(_rank):
    import gc
    import weakref

    options = {"budget": "95%", "effort": 0.2}
    freed, sessions = [], []
    for _ in range(2):
        model, run = sharded(options)
        train(model, run, 0, range(2))
        sessions.append(weakref.ref(SESSIONS.for_model(model)))
        freed.append(weakref.ref(model))
        del model, run
        gc.collect()
    return [it() is None for it in freed], sessions[0]() is not sessions[1]()


@pytest.mark.slow
def test_a_model_is_freed_and_the_next_one_planned_by_itself():
    """Dynamo keeps the graphs, and runs them for a model of the same class."""
    for freed, are_two in run_ranks(_freed, 2, timeout_s=60):
        assert freed == [True, True]
        assert are_two
