"""A value for every option of every command, and what must stand beside it to have a meaning."""

from __future__ import annotations

from dataclasses import dataclass, field

Given = dict[str, tuple[str, ...]]
"""Option -> its values on the command line; an argument without a flag is ``files`` and such."""

ARGUMENTS = {"files", "target", "plan_file", "experiment_file", "results_file", "report_file"}
ARGUMENTS |= {"shell"}
MODEL = "model:mlp,layers=4"


@dataclass(frozen=True)
class Sample:
    """Values of an option, and the options without which it is refused."""

    values: tuple[str, ...]
    needs: Given = field(default_factory=dict)


def sample(*values: str, **needs: str | tuple[str, ...]) -> Sample:
    """`needs` by names with underscores; a file or a model as ``files``."""
    named: Given = {}
    for name, value in needs.items():
        texts = (value,) if isinstance(value, str) else value
        named[name if name in ARGUMENTS else f"--{name.replace('_', '-')}"] = texts
    return Sample(values, named)


GRAPH = {"granularity": "op"}

WORKLOAD = {
    "files": sample("chain.json"),
    "--preset": sample("gpt2"),
    "--layers": sample("3"),
    "--hidden": sample("768"),
    "--heads": sample("8"),
    "--seq": sample("64"),
    "--batch": sample("2"),
    "--dtype": sample("fp32"),
    "--attention": sample("flash"),
    "--granularity": sample("block"),
    "--tensor-parallel": sample("4"),
    "--data-parallel": sample("2", static="auto", zero="1"),
    "--zero": sample("1", static="auto", data_parallel="2"),
    "--optimizer": sample("sgd", static="auto"),
    "--device": sample("h100"),
    "--efficiency": sample("0.5"),
    "--times": sample("times.json"),
    "--synthetic": sample("heavy-tailed"),
    "--seed": sample("3", synthetic="heavy-tailed"),
    "--level": sample("op", files=MODEL),
    "--remeasure": sample(files=MODEL),
    "--static": sample("1GB"),
    "--sequence-parallel": sample(tensor_parallel="4"),
    "--head": sample(),
}
MEMORY = {
    "--mem": sample("2TB"),
    "--schedule": sample("runs.txt"),
    "--capacity": sample("device=3TB"),
    "--allocator": sample("cuda-caching"),
    "--alloc-conf": sample("expandable_segments:True", allocator="cuda-caching"),
    "--link": sample("pcie4"),
    "--host-mem": sample("64GB", link="pcie4"),
    "--host-latency": sample("10us", link="pcie4"),
}
RULES = {"--keep": sample("*0*"), "--recompute": sample("*1*")}
OUTPUT = {"--json": sample(), "-o": sample("out.json")}
PIPELINE = {
    "--stages": sample("4"),
    "--micro-batches": sample("3"),
    "--schedule": sample("gpipe"),
    "--chunks": sample("2", schedule="interleaved"),
    "--recompute": sample("layers"),
    "--partition": sample("1,3"),
    "--link": sample("25GB/s"),
    "--link-latency": sample("0.001", link="25GB/s"),
    "--collectives": sample("300GB/s", tensor_parallel="4"),
    "--free-outputs": sample(),
    "--late-recompute": sample(recompute="layers"),
    "--replay": sample("pipeline.json"),
    "--mem": sample("2TB"),
}
CLUSTER = {
    "--preset": sample("qwen3-0.6b"),
    "--devices": sample("16"),
    "--device": sample("a100-80gb"),
    "--efficiency": sample("0.3"),
    "--fsdp": sample("2", replicate="2"),
    "--replicate": sample("2"),
    "--tensor": sample("2"),
    "--pipeline": sample("2", batch="2"),
    "--context": sample("2"),
    "--expert": sample("2", preset="deepseek-v2-lite"),
    "--dispatcher": sample("deepep", preset="deepseek-v2-lite", expert="2"),
    "--hidden-exchange": sample(
        preset="deepseek-v2-lite", expert="2", batch="2", micro_batches="2"
    ),
    "--uneven": sample("1.5", preset="deepseek-v2-lite", expert="2"),
    "--whole-experts": sample(preset="deepseek-v2-lite", tensor="2"),
    "--seq": sample("256"),
    "--batch": sample("2"),
    "--micro-batches": sample("2", batch="2"),
    "--schedule": sample("gpipe", pipeline="2", batch="4"),
    "--chunks": sample("2", schedule="interleaved", pipeline="2", batch="2"),
    "--recompute": sample("full"),
    "--zero": sample("2"),
    "--loss-chunks": sample("2"),
    "--state": sample("megatron"),
    "--torch": sample("2.8"),
    "--compile": sample(),
    "--float8": sample(),
    "--compile-loss": sample(),
    "--reduce-bf16": sample(),
    "--separate-head": sample(),
    "--fused-optimizer": sample(),
    "--eager-attention": sample(),
    "--regather": sample(tensor="2"),
    "--whole-sequence": sample(tensor="2"),
    "--overlap-tensor": sample(tensor="2", state="megatron"),
    "--chunked-head": sample(loss_chunks="2"),
    "--flash": sample("1"),
    "--network": sample("5", devices="16"),
    "--optimizer-in-backward": sample(state="bf16"),
    "--expandable": sample(),
}
OF_PLAN = sample("op", files=(MODEL, "plan.json"))
AGAIN_OF_PLAN = sample(files=(MODEL, "plan.json"))
PICTURE = {"-o": sample("out.png")}

SAMPLES: dict[str, dict[str, Sample]] = {
    "plan": {
        **WORKLOAD,
        **MEMORY,
        **OUTPUT,
        "--planner": sample("rotor"),
        "--gap": sample("0.01", granularity="op"),
        "--time-limit": sample("5"),
        "--effort": sample("5", granularity="op"),
        "--slots": sample("50", planner="rotor"),
        "--order": sample("free", granularity="op"),
        "--memory-level": sample("2:0.1:0.2", planner="hrevolve"),
        "--maximize": sample("batch"),
        "--search-seed": sample("3"),
        "--accumulate": sample("2", files=MODEL),
        "--chunk": sample("head=2", files=MODEL),
        "--ways": sample(files=MODEL),
        "--allow": sample("quantize"),
        "--certificate": sample("proof.json"),
        **RULES,
    },
    "simulate": {**WORKLOAD, **MEMORY, **OUTPUT},
    "compare": {
        **WORKLOAD,
        **MEMORY,
        **OUTPUT,
        **RULES,
        "--planners": sample("rotor,store_all"),
        "--effort": sample("5"),
        "--time-limit": sample("5"),
    },
    "estimate": {**WORKLOAD, "--json": sample()},
    "explain": {**WORKLOAD, **OUTPUT, "--alloc-conf": sample("x:1"), "--top": sample("1")},
    "pipeline": {**WORKLOAD, **OUTPUT, **PIPELINE},
    "cluster": {
        **CLUSTER,
        "--mem": sample("6GB"),
        "--host-mem": sample("1GB"),
        "--search": sample(mem="7GB", global_batch="8", effort="1"),
        "--global-batch": sample("8", search=(), mem="50GB", effort="2"),
        "--effort": sample("1", search=(), mem="7GB", global_batch="8"),
        "--launch": sample("torchtitan"),
        "--json": sample(),
        "-o": sample("a.json.gz"),
    },
    "report": {
        **WORKLOAD,
        "files": sample("plan.json"),
        "--level": OF_PLAN,
        "--remeasure": AGAIN_OF_PLAN,
        "-o": sample("out.html"),
    },
    "export": {
        **WORKLOAD,
        **OUTPUT,
        "files": sample("plan.json"),
        "--to": sample("jax"),
        "--framework-version": sample("4", to="transformers"),
        "--list": sample(),
    },
    "plot timeline": {
        **WORKLOAD,
        **MEMORY,
        **PICTURE,
        "--against": sample("time"),
        "--capacity": sample("device=3TB", files="streams.json"),
    },
    "plot gantt": {**WORKLOAD, **MEMORY, **PICTURE},
    "plot schedule": {**WORKLOAD, **MEMORY, **PICTURE},
    "plot frontier": {
        **WORKLOAD,
        **PICTURE,
        "--planners": sample("store_all"),
        "--order": sample("free", granularity="op"),
        "--time-limit": sample("5", granularity="op"),
        "--points": sample("7", granularity="op"),
        **RULES,
    },
    "plot pipeline": {**WORKLOAD, **PICTURE, **PIPELINE},
    "plot cluster": {**CLUSTER, **PICTURE, "--mem": sample("1GB", recompute="fit")},
    "plot sweep": {"results_file": sample("other.jsonl"), **PICTURE},
    "plot validate": {"report_file": sample("other.json"), **PICTURE},
    "sweep": {
        "experiment_file": sample("other.toml"),
        "-o": sample("out.jsonl"),
        "--jobs": sample("2"),
        "--backend": sample("dask"),
        "--address": sample("tcp://127.0.0.1:1", backend="dask"),
        "--retry-errors": sample(),
        "--dry-run": sample(),
        "--json": sample(),
    },
    "profile": {
        "target": sample("model:mlp,layers=3"),
        "--device": sample("cpu"),
        "--level": sample("op"),
        "--meter": sample("storage"),
        "--rounds": sample("3"),
        "--remeasure": sample(),
        **OUTPUT,
    },
    "validate": {
        "target": sample("model:mlp,layers=3"),
        "--device": sample("cpu"),
        "--level": sample("op"),
        "--meter": sample("storage"),
        "--remeasure": sample(),
        "--mem": sample("2TB"),
        "--rounds": sample("3"),
        "--seed": sample("3"),
        "--keep": sample("*0*", mem="2TB"),
        "--recompute": sample("*1*", mem="2TB"),
        "plan_file": sample("plan.json"),
        **OUTPUT,
    },
    "planners": {"--json": sample()},
    "env": {"--json": sample()},
    "completion": {"shell": sample("zsh")},
}

BASES: dict[str, Given] = {
    "plan": {"--layers": ("4",), "--mem": ("1TB",)},
    "compare": {"--layers": ("4",), "--mem": ("1TB",)},
    "pipeline": {"--layers": ("4",), "--stages": ("2",), "--micro-batches": ("4",)},
    "plot pipeline": {
        "--layers": ("4",),
        "--stages": ("2",),
        "--micro-batches": ("4",),
        "-o": ("base.png",),
    },
    "cluster": {"--preset": ("llama3.2-1b",), "--devices": ("4",), "--seq": ("128",)},
    "plot cluster": {
        "--preset": ("llama3.2-1b",),
        "--devices": ("8",),
        "--seq": ("128",),
        "-o": ("base.png",),
    },
    "export": {"--to": ("torch",), "files": ("formula.json",)},
    "report": {"files": ("formula.json",), "-o": ("base.html",)},
    "plot sweep": {"results_file": ("results.jsonl",), "-o": ("base.png",)},
    "plot validate": {"report_file": ("report.json",), "-o": ("base.png",)},
    "sweep": {"experiment_file": ("experiment.toml",), "-o": ("base.jsonl",)},
    "profile": {"target": (MODEL,)},
    "validate": {"target": (MODEL,)},
    "completion": {"shell": ("bash",)},
    "planners": {},
    "env": {},
}
"""Arguments that a command cannot do without; by default four layers."""


def base(command: str) -> Given:
    """The words that stand on the line of `command` in any case."""
    if command in BASES:
        return BASES[command]
    given: Given = {"--layers": ("4",)}
    if command.startswith("plot"):
        given["-o"] = ("base.png",)
    return given


def together(command: str, *flags: str, without: str | None = None) -> Given:
    """The line with the samples of `flags` and all that they need, but for `without`."""
    samples = SAMPLES[command]
    given = dict(base(command))
    for flag in flags:
        given.update(samples[flag].needs)
    for flag in flags:
        given[flag] = samples[flag].values
    if without is not None:
        del given[without]
        if without in base(command):
            given[without] = base(command)[without]
    if "--replay" in flags:  # the plan remembers its stages and micro-batches
        for flag in {"--stages", "--micro-batches"} - set(flags):
            given.pop(flag, None)
    if "--list" in flags:  # it stands alone
        for flag in {"--to", "files"} - set(flags):
            given.pop(flag, None)
    if "files" in given and "--layers" not in flags:
        given.pop("--layers", None)  # a workload file takes the place of the formula
    return given


def words(given: Given) -> list[str]:
    """The arguments, as `schedsim.cli.app.run` takes them."""
    found = []
    for name, values in given.items():
        found += [*values] if name in ARGUMENTS else [name, *values]
    return found
