"""What a length that a loop meets for the first time costs in its step, beyond a step.

    python benchmarks/new_lengths.py            # every row that the table lacks
    python benchmarks/new_lengths.py --again

A GPT-2 and a BERT of transformers, of two layers, train in place and by
``torch.compile(backend="schedsim")``, within budgets that leave 60 % of what a step of the first
length takes beyond its state, and within bytes that the longest length just fits. Lengths grow up
to four times the first. Of each length above all before, the processor time of the step's own
thread is split: choosing a schedule, and comparing a new schedule with another one, which takes
two steps where it was not done ahead. The peak of a later step of each length is measured.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "new-lengths.jsonl"
FIRST = (64, 64, 64, 72, 72, 60, 72)
LONGER = (80, 92, 100, 116, 130, 150, 160, 180, 200, 222, 256)
BATCH, WORDS, WIDTH = 4, 211, 64


def model_of(name: str) -> Any:
    """A model of two layers, which gives its loss."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    if name == "gpt2":
        config: Any = GPT2Config(
            n_layer=2, n_embd=WIDTH, n_head=4, vocab_size=WORDS, n_positions=512
        )
        return GPT2LMHeadModel(config).train()
    config = BertConfig(
        num_hidden_layers=2,
        hidden_size=WIDTH,
        num_attention_heads=4,
        vocab_size=WORDS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=512,
    )
    return BertForMaskedLM(config).train()


class Stopwatch:
    """Seconds of this thread within methods, by a word."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def watch(self, owner: type, method: str, word: str) -> None:
        """Count what `method` takes as `word`."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **keywords: Any) -> Any:
            started = time.thread_time()
            try:
                return inner(*args, **keywords)
            finally:
                self.seconds[word] += time.thread_time() - started

        setattr(owner, method, timed)


def row_of(name: str, way: str, kind: str) -> dict[str, Any]:
    """One loop."""
    import torch
    from schedsim.validation.drop_in import backend
    from schedsim.validation.drop_in.in_place import session_in
    from schedsim.validation.drop_in.parts.traced_part import TracedPart
    from schedsim.validation.drop_in.plans.step_plans import StepPlans
    from schedsim.validation.measure import AllocatorMeter, storage_bytes

    import schedsim

    watch = Stopwatch()
    watch.watch(StepPlans, "begin", "choose")
    watch.watch(StepPlans, "number_for", "choose")
    watch.watch(TracedPart, "_compared", "compare")

    def batch(length: int) -> dict[str, Any]:
        words = torch.randint(0, WORDS, (BATCH, length))
        return {"input_ids": words, "labels": words}

    def peak_of(call: Any, length: int) -> int:
        given = batch(length)

        def whole() -> None:
            call(**given).loss.backward()

        [reading] = AllocatorMeter().read(whole)
        resident = storage_bytes([given, list(model.parameters()), list(model.buffers())])
        model.zero_grad()
        return int(reading.peak_bytes + resident)

    model = model_of(name)
    model(**batch(FIRST[0])).loss.backward()
    model.zero_grad()
    budget: Any = "60%"
    if kind == "bytes":
        state = 2 * storage_bytes(list(model.parameters()))
        budget = state + int(0.75 * (peak_of(model, LONGER[-1]) - state))
    if way == "in place":
        call = schedsim.rematerialize(model, batch(FIRST[0]), budget, in_place=True)
    else:
        call = torch.compile(model, backend="schedsim", options={"budget": budget})
    found: dict[str, Any] = {"model": name, "way": way, "budget": kind, "lengths": []}
    for length in (*FIRST, *LONGER):
        watch.seconds.clear()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            call(**batch(length)).loss.backward()
        model.zero_grad()
        took = dict(watch.seconds)
        for _ in range(2):
            call(**batch(length)).loss.backward()
            model.zero_grad()
        if length not in LONGER:
            continue
        session: Any = session_in(model) if way == "in place" else list(backend._sessions.values())
        session = session if way == "in place" else session[-1][1]
        row = {"length": length, "peak_bytes": peak_of(call, length)}
        row["budget_bytes"] = session.budget_bytes
        row |= {f"{word}_ms": round(1e3 * took.get(word, 0), 1) for word in ("choose", "compare")}
        row["says"] = [str(one.message)[:120] for one in said]
        found["lengths"].append(row)
    return found


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--again", action="store_true", help="every row once more")
    parser.add_argument("--only", default="", help="words of a row, such as 'gpt2 bytes'")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    text = RESULTS.read_text() if RESULTS.exists() else ""
    rows = {
        tuple(r[k] for k in ("model", "way", "budget")): r
        for r in map(json.loads, text.splitlines())
    }
    for name in ("gpt2", "bert"):
        for way in ("in place", "backend"):
            for kind in ("share", "bytes"):
                key = (name, way, kind)
                chosen = all(word in " ".join(key) for word in args.only.split())
                if chosen and (args.again or key not in rows):
                    torch._dynamo.reset()
                    rows[key] = row_of(*key)
                    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
                if key in rows:
                    show(rows[key])


def show(row: dict[str, Any]) -> None:
    """A line for who watches."""
    lengths = row["lengths"]
    choose, compare = (max(it[f"{word}_ms"] for it in lengths) for word in ("choose", "compare"))
    over = sum(it["peak_bytes"] > it["budget_bytes"] for it in lengths)
    print(
        f"{row['model']:<6}{row['way']:<10}{row['budget']:<6} {len(lengths)} new lengths: "
        f"choosing takes at most {choose:.0f} ms, comparing {compare:.0f} ms; {over} over budget"
    )


if __name__ == "__main__":
    main()
