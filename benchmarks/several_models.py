"""Loops of several models, each with a budget: how often are they refused, and what do they take?

    python benchmarks/several_models.py                          # every loop, way and budget
    python benchmarks/several_models.py --loops gan,ddpg --ways backend

A row is a loop, a way to give its models a budget, and a share of the plain loop's peak. Where that
is refused, the loop is tried again with the budget that the refusal names, until one is taken. The
row says how often it was refused, what was named last, and the most bytes that the CPU allocator
had live at any time of the loop, its first steps among it, over that budget (`live_bytes.py`); and
whether parameters, buffers, gradients and the generator are those of the plain loop behind each
step, to the bit. Every try is a process of its own. Needs a C++ compiler, and the extra `torch`.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import multiprocessing
import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from live_bytes import counter
from schedsim.validation.guards.tensor_bits import bits_of
from torch import Tensor, nn

import schedsim
from schedsim.errors import InfeasibleBudgetError

RESULTS = Path(__file__).parent / "results" / "several-models.jsonl"
SHARES = (0.75, 0.6, 0.2)
BATCH, SIZE = 32, 24
MOST_TRIES, MOST_SECONDS = 5, 900
Give = Callable[..., Any]
"""`give(model, *inputs, beside=tensors, budget=...)`: the model, or what stands for it."""


# -- models -----------------------------------------------------------------------------------


def images(num_in: int, num_out: int, width: int = 32) -> nn.Sequential:
    """A convolutional net from images to numbers."""
    return nn.Sequential(
        nn.Conv2d(num_in, width, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(width * (SIZE // 2) ** 2, 32),
        nn.SiLU(),
        nn.Linear(32, num_out),
    )


def painter(num_in: int, width: int = 32) -> nn.Sequential:
    """A convolutional net from numbers to images."""
    return nn.Sequential(
        nn.Linear(num_in, width * (SIZE // 2) ** 2),
        nn.Unflatten(1, (width, SIZE // 2, SIZE // 2)),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.SiLU(),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(width, width, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(width, 3, 3, padding=1),
        nn.Tanh(),
    )


class Judge(nn.Module):
    """A critic of what is done in a state."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.seen, self.done = images(3, 64), nn.Linear(num_actions, 64)
        self.value = nn.Sequential(nn.SiLU(), nn.Linear(64, 1))

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        found: Tensor = self.value(self.seen(state) + self.done(action))
        return found


class Reader(nn.Module):
    """A transformer from sequences to numbers."""

    def __init__(self, num_out: int, width: int = 64) -> None:
        super().__init__()
        layer = partial(nn.TransformerEncoderLayer, width, 4, 4 * width, 0.0, batch_first=True)
        self.layers = nn.Sequential(layer(), layer())
        self.head = nn.Linear(width, num_out)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.layers(x).mean(1))
        return found


class ActorAndCritic(nn.Module):
    """One model with two forwards."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.actor, self.critic = images(3, num_actions), Judge(num_actions)

    def forward(self, state: Tensor, action: Tensor | None = None) -> Tensor:
        if action is None:
            return torch.tanh(self.actor(state))
        found: Tensor = self.critic(state, action)
        return found


def state() -> Tensor:
    """A batch of images."""
    return torch.randn(BATCH, 3, SIZE, SIZE)


def adam(*models: nn.Module) -> torch.optim.Optimizer:
    """AdamW for all of their parameters."""
    return torch.optim.AdamW([p for it in models for p in it.parameters()], lr=1e-4)


# -- loops: each makes its models, gives them their budgets, and yields after every step ------


def gan(give: Give) -> Iterator[None]:
    """A generator and its critic."""
    generator, critic = painter(32), images(3, 1)
    noise, real = torch.randn(BATCH, 32), state()
    ones, twos = adam(generator), adam(critic)
    maker = give(generator, noise, beside=[real], others=[critic])
    judge = give(critic, real, beside=[noise, real], others=[generator])
    while True:
        twos.zero_grad()
        (judge(maker(noise).detach()).mean() - judge(real).mean()).backward()
        twos.step()
        ones.zero_grad()
        (-judge(maker(noise)).mean()).backward()
        ones.step()
        yield


def ddpg(give: Give, warm_up: int = 0) -> Iterator[None]:
    """An actor and its critic, each with an averaged copy; the actor may begin later."""
    actor, critic = nn.Sequential(images(3, 4), nn.Tanh()), Judge(4)
    averaged = [copy.deepcopy(it).requires_grad_(False) for it in (actor, critic)]
    seen, action, reward, then = state(), torch.randn(BATCH, 4), torch.randn(BATCH, 1), state()
    actors, critics = adam(actor), adam(critic)
    beside = [reward, then, *(p for it in averaged for p in it.parameters())]
    act = give(actor, seen, beside=[action, *beside], others=[critic])
    judge = give(critic, seen, action, beside=beside, others=[actor])
    num_steps = 0
    while True:
        with torch.no_grad():
            target = reward + 0.99 * averaged[1](then, averaged[0](then))
        loss = nn.functional.mse_loss(judge(seen, action), target)
        critics.zero_grad()
        loss.backward()
        critics.step()
        if num_steps >= warm_up:
            loss = -judge(seen, act(seen)).mean()
            actors.zero_grad()
            loss.backward()
            actors.step()
            with torch.no_grad():
                for mean, now in zip(averaged, (actor, critic), strict=True):
                    for a, b in zip(mean.parameters(), now.parameters(), strict=True):
                        a.lerp_(b, 0.01)
        num_steps += 1
        yield


def ppo(give: Give) -> Iterator[None]:
    """A policy and a value net, trained by one loss and one optimizer."""
    policy, values = Reader(6), Reader(1)
    seen, returns = torch.randn(BATCH, 32, 64), torch.randn(BATCH)
    optimizer = adam(policy, values)
    choose = give(policy, seen, beside=[returns], others=[values])
    value = give(values, seen, beside=[returns], others=[policy])
    while True:
        with torch.no_grad():
            before = choose(seen).log_softmax(-1)
            action = before.exp().multinomial(1)
            before = before.gather(1, action)
            advantage = returns - value(seen).squeeze(1)
        for _ in range(2):
            now = choose(seen).log_softmax(-1).gather(1, action)
            ratio = (now - before).exp().squeeze(1)
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = 0.5 * (value(seen).squeeze(1) - returns).square().mean() - gain
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
        yield


def teacher(give: Give) -> Iterator[None]:
    """A student and the average of it, which teaches it."""
    student = Reader(64)
    average = copy.deepcopy(student).requires_grad_(False)
    x, y = torch.randn(BATCH, 32, 64), torch.randn(BATCH, 32, 64)
    optimizer = adam(student)
    wanted = torch.empty(BATCH, 64)  # what the teacher will say
    learn = give(student, x, beside=[y, wanted, *average.parameters()])
    del wanted
    while True:
        with torch.no_grad():
            wanted = average(y).softmax(-1)
        loss = nn.functional.cross_entropy(learn(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for a, b in zip(average.parameters(), student.parameters(), strict=True):
                a.lerp_(b, 0.01)
        yield


def dqn(give: Give) -> Iterator[None]:
    """A net of values and the copy that tells its targets, which has the budget too."""
    net = images(3, 6)
    frozen = copy.deepcopy(net).requires_grad_(False)
    seen, then, reward = state(), state(), torch.randn(BATCH)
    optimizer = adam(net)
    values = give(net, seen, beside=[then, reward, *frozen.parameters()])
    num_steps = 0
    while True:
        with torch.no_grad():
            target = reward + 0.99 * frozen(then).max(1).values
        loss = nn.functional.smooth_l1_loss(values(seen).max(1).values, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        num_steps += 1
        if num_steps % 3 == 0:
            frozen.load_state_dict(net.state_dict())
        yield


def sac(give: Give) -> Iterator[None]:
    """Three models: an actor and two critics of it."""
    actor, one, two = nn.Sequential(images(3, 4), nn.Tanh()), Judge(4), Judge(4)
    seen, action, target = state(), torch.randn(BATCH, 4), torch.randn(BATCH, 1)
    actors, critics = adam(actor), adam(one, two)
    act = give(actor, seen, beside=[action, target], others=[one, two])
    first = give(one, seen, action, beside=[target], others=[actor, two])
    second = give(two, seen, action, beside=[target], others=[actor, one])
    while True:
        loss = sum((it(seen, action) - target).square().mean() for it in (first, second))
        critics.zero_grad()
        loss.backward()
        critics.step()
        done = act(seen)
        loss = -torch.min(first(seen, done), second(seen, done)).mean()
        actors.zero_grad()
        loss.backward()
        actors.step()
        yield


def shared(give: Give) -> Iterator[None]:
    """An actor and a critic in one model, trained in turn by two optimizers."""
    model, seen, action = ActorAndCritic(4), state(), torch.randn(BATCH, 4)
    actors, critics = adam(model.actor), adam(model.critic)
    both = give(model, seen, beside=[action])
    while True:
        both(seen, action).square().mean().backward()
        critics.step()
        model.zero_grad()
        (-both(seen, both(seen)).mean()).backward()
        actors.step()
        model.zero_grad()
        yield


def twice(give: Give) -> Iterator[None]:
    """One model that is given a budget twice, as for two losses of it."""
    model, x = images(3, 8), state()
    optimizer = adam(model)
    one = give(model, x)
    two = give(model, x, again=True)
    while True:
        for call in (one, two):
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
        yield


def deleted(give: Give) -> Iterator[None]:
    """A critic that is gone after three steps, and another one in its place later."""
    steps = gan(give)
    for _ in range(3):
        next(steps)
        yield
    del steps
    gc.collect()
    yield from gan(give)


LOOPS: dict[str, tuple[Callable[[Give], Iterator[None]], int]] = {
    "gan": (gan, 6),
    "ddpg": (ddpg, 6),
    "ddpg, warm-up": (partial(ddpg, warm_up=10), 15),
    "ppo": (ppo, 4),
    "teacher": (teacher, 6),
    "dqn": (dqn, 6),
    "sac": (sac, 6),
    "shared": (shared, 6),
    "twice": (twice, 4),
    "deleted": (deleted, 7),
}
WAYS = ("backend", "in place")


# -- ways to give a budget --------------------------------------------------------------------


def given(
    way: str,
    budget: int,
    named: bool,
    model: nn.Module,
    *inputs: Tensor,
    beside: Any = (),
    others: Any = (),
    again: bool = False,
) -> Any:
    """`model` within `budget`, beside these tensors."""
    extra = sum(it.nbytes for it in beside)
    if named:
        extra += 4 * sum(p.nbytes for it in others for p in it.parameters())
    if way == "plain":
        return model
    options = {"budget": budget, "effort": 0.1, "extra_bytes": extra}
    if way == "backend":
        return torch.compile(model, backend="schedsim", options=options)
    if again:
        return model
    return schedsim.rematerialize(model, inputs, in_place=True, check="never", **options)


# -- rows -------------------------------------------------------------------------------------


def tried(loop: str, way: str, budget: int, named: bool = False) -> dict[str, Any]:
    """One try of a loop: what it takes, or what is named by its refusal, and in which step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    count = counter()
    make, num_steps = LOOPS[loop]
    gc.collect()
    before = count.live_bytes()
    count.reset_peak()
    row: dict[str, Any] = {"budget": budget}
    peaks: list[int] = []
    digests: list[int] = []
    models: list[weakref.ref[nn.Module]] = []  # a loop may delete them

    def give(model: nn.Module, *inputs: Tensor, **more: Any) -> Any:
        models.append(weakref.ref(model))
        return given(way, budget, named, model, *inputs, **more)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            steps = make(give)
            for _ in range(num_steps):
                next(steps)
                peaks.append(count.peak_bytes() - before)
                digests.append(digest_of(it for one in models if (it := one()) is not None))
                count.reset_peak()
        except Exception as error:  # by the backend it comes in an error of Dynamo's
            text = f"{error}; {getattr(error, 'hint', '')}"
            found = re.search(r"budget=(\d+)", text)
            refused = isinstance(error, InfeasibleBudgetError) or found is not None
            row |= {"refused": refused, "step": len(peaks), "says": text[:1500]}
            row["named"] = int(found[1]) if found else None
    lines = [str(one.message)[:300] for one in said if "schedsim" in str(one.category)]
    return row | {
        "peaks": peaks,
        "peak": max(peaks, default=0),
        "digests": digests,
        "lines": list(dict.fromkeys(lines)),
    }


def digest_of(models: Iterable[nn.Module]) -> int:
    """A number for every bit of what `models` and the generator hold."""
    held = [t for it in models for t in (*it.parameters(), *it.buffers())]
    gradients = [t.grad for t in held if t.grad is not None]
    return hash(tuple(bits_of(t)[-1] for t in (*held, *gradients, torch.get_rng_state())))


def _send(pipe: Any, *arguments: Any) -> None:
    try:
        pipe.send(tried(*arguments))
    except BaseException as error:
        pipe.send({"crash": repr(error)[:500]})
        raise


def apart(*arguments: Any) -> dict[str, Any]:
    """`tried` in a process of its own."""
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(its, *arguments))
    process.start()
    found = mine.recv() if mine.poll(MOST_SECONDS) else {"crash": "too long"}
    process.kill()
    process.join()
    return dict(found)


def row_of(
    loop: str, way: str, share: float, its_plain: dict[str, Any], named: bool
) -> dict[str, Any]:
    """The tries of a loop, from a share of the peak of its plain one on."""
    plain = its_plain["peak"]
    started, budget, refusals = time.monotonic(), int(share * plain), []
    for _ in range(MOST_TRIES):
        found = apart(loop, way, budget, named)
        if found.get("named") is None or found.get("named") == budget:
            break
        refusals.append({key: found[key] for key in ("budget", "step", "named", "says")})
        budget = found["named"]
    digests = found.pop("digests", [])
    found["is_equal"] = digests == its_plain["digests"][: len(digests)]
    row = {"loop": loop, "way": way, "share": share, "plain": plain, "refusals": refusals} | found
    return row | {"seconds": round(time.monotonic() - started, 1)}


def shown(row: dict[str, Any]) -> str:
    """A line for who watches."""
    peak = row.get("peak", 0) / row.get("budget", 1)
    refused = [f"{it['budget'] / 1e6:.2f}@{it['step']}" for it in row["refusals"]]
    bits = "equal" if row["is_equal"] else "DIFFERS"
    says = row.get("crash") or (row.get("says", "")[:200] if "refused" in row else "")
    return (
        f"{row['loop']:<14}{row['way']:<9}{row['share']:>5.0%}  refused {len(refused)} "
        f"({', '.join(refused)})  budget {row.get('budget', 0) / 1e6:.2f} "
        f"({row.get('budget', 0) / row['plain']:.1%})  peak/budget {peak:.4f}  {bits}  "
        f"{row['seconds']:.0f} s  {len(row.get('lines', []))} lines {says}"
    )


def main() -> None:
    """Try what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default="", help="with semicolons between")
    parser.add_argument("--ways", default="", help="with semicolons between")
    parser.add_argument("--shares", default="")
    parser.add_argument("--name-others", action="store_true", help="as extra_bytes")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    loops = [it for it in args.loops.split(";") if it] or list(LOOPS)
    ways = [it for it in args.ways.split(";") if it] or list(WAYS)
    shares = [float(it) for it in args.shares.split(";") if it] or list(SHARES)
    for loop in loops:
        plain = apart(loop, "plain", 1)
        for way in ways:
            for share in shares:
                row = row_of(loop, way, share, plain, args.name_others)
                print(shown(row), flush=True)
                with args.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
