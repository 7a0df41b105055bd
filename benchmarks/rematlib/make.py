"""Makes the instances of RematLib, and the index without what `solve.py` finds.

    python benchmarks/rematlib/make.py [GROUP or NAME ...]

Synthetic families and formula models are reproduced bit by bit. Captured models take the extra
`torch`, and a later version of it may trace other ops. So the committed files of captured models
count, and these models are captured again only if they are named.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from families import FAMILIES
from submit import write_index, write_json

from schedsim import Chain, Graph, Schedule, Stage, simulate
from schedsim.files.document import to_dict
from schedsim.files.workload_files import workload_hash
from schedsim.workloads.build import build_workload
from schedsim.workloads.options import WorkloadOptions

HERE = Path(__file__).resolve().parent
TOTAL_UNITS = 100_000
"""Times of models become whole numbers of a unit, of which a step takes at least this many."""

GROUPS = {
    "chain-uniform": "equal stages, whose optimum has a closed form",
    "chain-random": "times, sizes and workspaces of every stage drawn",
    "chain-shapes": "heavy tails, pyramids, waists and blocks in turn",
    "chain-formula": "published models by formula, a stage a layer or block, rooflines of an A100",
    "graph-line": "unit ops in a line, the smallest graph with an interesting optimum",
    "graph-layered": "random layers with a true backward",
    "graph-residual": "blocks with a sum over what came in",
    "graph-u-net": "a way down joined to a way up",
    "graph-dense": "every op reads all before it in its block",
    "graph-inception": "branches of different depth, joined",
    "graph-recurrent": "cells unrolled over time and layers",
    "graph-encoder-decoder": "a memory that every later layer reads",
    "graph-inference": "random layers without a backward",
    "graph-formula": "transformers and ResNets by formula, op by op",
    "graph-captured": "PyTorch models traced op by op, small configurations, rooflines of an A100",
}


CAPTURED = (
    "mlp,layers=8,hidden=64,batch=2048",
    "mlp,layers=16,hidden=128,batch=4096",
    "mlp,layers=12,hidden=256,batch=128,dropout=0.1",
    "gpt2,layers=1,hidden=64,heads=2,vocab=256,seq=64,batch=4,dropout=0.0",
    "gpt2,layers=2,hidden=128,heads=4,vocab=512,seq=128,batch=4,dropout=0.0",
    "gpt2,layers=2,hidden=128,heads=4,vocab=512,seq=128,batch=4,dropout=0.1",
    "gpt2,layers=4,hidden=256,heads=4,vocab=1000,seq=256,batch=2,dropout=0.0",
    "llama2-7b,layers=1,hidden=128,heads=4,ffn=344,vocab=512,seq=128,batch=2",
    "llama2-7b,layers=2,hidden=128,heads=4,ffn=344,vocab=512,seq=128,batch=2",
    "llama2-7b,layers=4,hidden=256,heads=4,kv_heads=2,ffn=688,vocab=1000,seq=256,batch=1",
    "vit-b16,layers=1,hidden=64,heads=2,patch=8,image=32,classes=10,batch=8",
    "vit-b16,layers=2,hidden=128,heads=4,patch=8,image=64,classes=10,batch=8",
    "vit-b16,layers=4,hidden=128,heads=4,patch=8,image=64,classes=10,batch=4",
    "resnet50,width=8,image=32,classes=10,batch=16",
    "resnet101,width=8,image=64,classes=10,batch=4",
    "resnet50,width=16,image=64,classes=10,batch=4",
    "unet,levels=2,width=8,image=64,batch=2",
    "unet,levels=3,width=16,image=64,batch=2",
    "unet,levels=4,width=16,image=128,batch=1",
    "lstm,seq=4,hidden=64,features=16,batch=8,steps=2,dropout=0.0",
    "lstm,seq=8,hidden=64,features=16,batch=8,steps=2,dropout=0.0",
    "lstm,seq=16,hidden=128,features=32,batch=8,steps=4,dropout=0.1",
)
"""Models as on the command line, small enough to be planned in seconds."""


@dataclass(frozen=True)
class Recipe:
    """How one instance is made.

    Attributes
    ----------
    source
        ``family`` of `families.py` with its arguments; ``formula`` with the options of
        ``schedsim plan``; ``model`` as on the command line.
    """

    name: str
    group: str
    source: dict[str, Any]


def recipes() -> Iterator[Recipe]:
    """All of them."""
    for stages, ratios in ((4, (1, 4)), (8, (1, 4)), (16, (1, 4)), (32, (1, 4)), (64, (4,))):
        for ratio in ratios:
            yield _family("chain-uniform", "uniform_chain", stages=stages, ratio=ratio, seed=0)
    yield _family("chain-uniform", "uniform_chain", stages=96, ratio=8, seed=0)
    for stages in (6, 10, 14, 20, 26, 32):
        for seed in range(5):
            yield _family("chain-random", "random_chain", stages=stages, seed=seed)
    for family in ("heavy_chain", "pyramid_chain", "waist_chain", "blocks_chain"):
        for stages in (8, 16, 24):
            for seed in range(2):
                yield _family("chain-shapes", family, stages=stages, seed=seed)
    for preset in ("gpt2", "gpt2-medium", "gpt2-xl", "llama2-7b", "llama3-8b", "mistral-7b"):
        yield _formula("chain-formula", preset=preset)
    for preset in ("vit-b16", "resnet-50", "resnet-101"):
        yield _formula("chain-formula", preset=preset, batch=16)
    yield _formula("chain-formula", preset="gpt2", batch=8, granularity="block")
    yield _formula("chain-formula", layers=24)
    yield _formula("chain-formula", layers=48, attention="flash")
    for ops in (6, 8, 12, 16, 24, 32):
        yield _family("graph-line", "unit_line", ops=ops, seed=0)
    for ops in (6, 10, 14, 18, 24, 32, 40):
        for seed in range(4):
            yield _family("graph-layered", "layered", ops=ops, seed=seed)
    for blocks in (2, 4, 6, 8, 12):
        for seed in range(2):
            yield _family("graph-residual", "residual", blocks=blocks, seed=seed)
    for levels in (2, 3, 4, 5):
        for seed in range(2):
            yield _family("graph-u-net", "u_net", levels=levels, seed=seed)
    for ops in (6, 10, 15, 20):
        for seed in range(2):
            yield _family("graph-dense", "dense", ops=ops, seed=seed)
    for modules in (1, 2, 3, 4):
        for seed in range(2):
            yield _family("graph-inception", "inception", modules=modules, seed=seed)
    for steps, layers in ((4, 2), (8, 1), (8, 2), (12, 2), (16, 1)):
        for seed in range(2):
            yield _family("graph-recurrent", "recurrent", steps=steps, layers=layers, seed=seed)
    for layers in (1, 2, 4, 6):
        for seed in range(2):
            yield _family("graph-encoder-decoder", "encoder_decoder", layers=layers, seed=seed)
    for ops in (10, 16, 24, 36, 48):
        for seed in range(3):
            yield _family("graph-inference", "layered_inference", ops=ops, seed=seed)
    for layers in (1, 2, 4):
        yield _formula("graph-formula", preset="gpt2", layers=layers, granularity="op")
        yield _formula("graph-formula", preset="llama3-8b", layers=layers, granularity="op")
    for preset in ("vit-b16", "gpt2-xl"):
        yield _formula("graph-formula", preset=preset, layers=2, batch=8, granularity="op")
    yield _formula("graph-formula", preset="resnet-50", batch=8, granularity="op")
    numbers: dict[str, int] = {}
    for text in CAPTURED:
        model = text.partition(",")[0]
        numbers[model] = numbers.get(model, 0) + 1
        name = f"captured-{model}-{numbers[model]}"
        yield Recipe(name, "graph-captured", {"model": text})


def _family(group: str, family: str, **arguments: int) -> Recipe:
    values = "-".join(str(value) for value in arguments.values())
    name = f"{family.replace('_', '-')}-{values}"
    return Recipe(name, group, {"family": family, **arguments})


def _formula(group: str, **options: Any) -> Recipe:
    name = "-".join(
        str(value) if key in ("preset", "granularity", "attention") else f"{key}{value}"
        for key, value in options.items()
    )
    return Recipe(f"formula-{name}", group, {"formula": options})


def make(recipe: Recipe) -> tuple[Chain | Graph, float]:
    """The instance, and the seconds of its unit of time (0: a unit of no meaning)."""
    source = dict(recipe.source)
    if "family" in source:
        made, unit_s = FAMILIES[source.pop("family")](**source), 0.0
    elif "formula" in source:
        made, unit_s = in_whole_units(build_workload(WorkloadOptions(**source["formula"])).workload)
    else:
        from schedsim.validation.targets import read_target

        found = read_target(f"model:{source['model']}", level="op", device="a100-80gb")
        made, unit_s = in_whole_units(found.workload)
    return replace(made, name=recipe.name), unit_s


def in_whole_units(workload: Chain | Graph) -> tuple[Chain | Graph, float]:
    """Times rounded to whole numbers of a power of ten of a second, and that power."""
    unit_s = Fraction(10) ** math.floor(math.log10(workload.store_all_s / TOTAL_UNITS))

    def whole(time_s: float) -> int:
        return round(Fraction(time_s) / unit_s)

    if isinstance(workload, Chain):
        stages = tuple(
            Stage(
                name=s.name,
                forward_s=whole(s.forward_s),
                backward_s=whole(s.backward_s),
                output_bytes=s.output_bytes,
                saved_bytes=s.saved_bytes,
                forward_workspace_bytes=s.forward_workspace_bytes,
                backward_workspace_bytes=s.backward_workspace_bytes,
                saving_workspace_bytes=s.saving_workspace_bytes,
            )
            for s in workload.stages
        )
        return replace(workload, stages=stages, loss_s=whole(workload.loss_s)), float(unit_s)
    ops = tuple(replace(op, time_s=whole(op.time_s)) for op in workload.ops)
    return replace(workload, ops=ops, variants=()), float(unit_s)


def described(recipe: Recipe, workload: Chain | Graph, unit_s: float) -> dict[str, Any]:
    """The row of the index, but for budgets."""
    graph = workload.graph
    store_all = simulate(workload, Schedule.store_all(workload))
    return {
        "name": recipe.name,
        "group": recipe.group,
        "kind": workload.kind,
        "file": f"instances/{recipe.name}.json.gz",
        "content_hash": workload_hash(workload),
        "source": recipe.source,
        "unit_s": unit_s or None,
        "num_ops": graph.num_ops,
        "num_tensors": len(graph.arrays.tensor_names),
        "static_bytes": workload.static_bytes,
        "store_all_peak_bytes": store_all.peak_bytes,
        "store_all_s": store_all.makespan_s,
    }


def main(groups: list[str]) -> None:
    """Write those in `groups` or called so, by default all but the captured; keep other rows."""
    path = HERE / "index.json"
    rows = {}
    if path.is_file():
        rows = {row["name"]: row for row in json.loads(path.read_text())["instances"]}
    chosen = set(groups) or set(GROUPS) - {"graph-captured"}
    ordered = []
    for recipe in recipes():
        if chosen & {recipe.group, recipe.name}:
            workload, unit_s = make(recipe)
            row = described(recipe, workload, unit_s)
            old = rows.get(recipe.name, {})
            if old.get("content_hash") == row["content_hash"]:
                row = {**old, **row}  # budgets stay with an instance that is the same
            write_json(HERE / row["file"], to_dict(workload))
            rows[recipe.name] = row
            print(recipe.group, recipe.name, row["num_ops"], file=sys.stderr)
        if recipe.name in rows:
            ordered.append(rows[recipe.name])
    write_index(HERE, {"licence": "MIT", "groups": GROUPS}, ordered)


if __name__ == "__main__":
    main(sys.argv[1:])
