"""The target of a command: a Python file, a built-in model, or a model of transformers.

``my_model.py:build``            a function that returns (model, inputs, loss)
``model:resnet50,batch=4``       a model of this package, with its options
``hf:gpt2,layers=4,seq=128``     a configuration of transformers, with random weights
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from schedsim.dataflow.chain import Chain
from schedsim.dataflow.graph import Graph
from schedsim.errors import MissingDependencyError, SchedsimError, did_you_mean
from schedsim.files.workload_files import workload_hash
from schedsim.plans.setting import StepChanges

from .block_level import CapturedChain, capture_chain
from .block_level.gradients_made import given_gradients, trained_parameters
from .block_level.scheduled_blocks import loss_of
from .block_times import BlockTimes
from .capture import CapturedGraph
from .capture.attention_backends import kernels_of
from .dry_cuda import LABEL, has_times, is_dry
from .environment import device_name, resolve_device
from .measure.meters import meter_of_budgets
from .models import build_model, read_options
from .op_level.recorded_ops import with_requests
from .whole_step.resident_state import counted_line

LEVELS = ("block", "op")


@dataclass(frozen=True)
class LoadedTarget:
    """A model with the inputs of one step and its loss, on its device.

    Attributes
    ----------
    inputs
        Positional inputs; those that the loss takes besides the model's output come last.
    loss
        A function of the model's output; ``None`` where the model computes its loss itself.
    """

    name: str
    model: nn.Module
    inputs: tuple[Any, ...]
    loss: Callable[..., Tensor] | None
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device


def load_target(text: str, device: str | None = None) -> LoadedTarget:
    """The target that `text` names, in training mode, on `device`.

    Raises
    ------
    SchedsimError
        The text is no target, or the target that it names cannot be built.

    Examples
    --------
    >>> load_target("model:mlp,layers=2,hidden=8,batch=4", "cpu").name
    'mlp,layers=2,hidden=8,batch=4'
    """
    where = "meta" if device == "meta" else resolve_device(device)
    if torch.device(where).type == "cuda":
        # Where parameters lie is part of what is reserved: as in a process that loads them first.
        gc.collect()
        torch.cuda.empty_cache()
    kind, colon, rest = text.partition(":")
    if colon and kind == "model":
        name, _, options = rest.partition(",")
        built = build_model(name, device=where, **read_options(options))
        target = LoadedTarget(rest, built.model, built.inputs, built.loss)
    elif colon and kind == "hf":
        target = _from_transformers(rest, where)
    else:
        target = _from_file(text, where)
    target.model.train()
    return target


def capture_target(
    target: LoadedTarget,
    level: str = "block",
    *,
    meter: str | None = None,
    remeasure: bool = False,
    rounds: int = 7,
    movable: bool = False,
    keeps_gradients: bool = False,
) -> CapturedChain | CapturedGraph:
    """`target` as a chain of blocks or a graph of ops, with times and workspaces measured.

    Times come from earlier measurements on this machine if there are any; `remeasure` measures them
    again. `movable` is for plans that copy blocks to the host; these do not include the input,
    which the caller holds. `keeps_gradients` is for a loop whose ``zero_grad(set_to_none=False)``
    keeps the gradients of parameters: they count as resident.
    """
    if level == "op":
        from .costs import device_costs

        captured = _graph_of(target)
        costs = device_costs(captured, target.device, use_cache=not remeasure)
        captured = captured.with_costs(costs)
        if keeps_gradients:
            trained = trained_parameters(target.model, target.loss)
            captured = captured.with_state(sum(p.numel() * p.element_size() for p in trained))
        inputs = (target.inputs, target.keywords)
        return with_requests(captured, inputs, keeps_gradients=keeps_gradients)
    if level != "block":
        raise SchedsimError(f"--level {level!r} is unknown", hint="block or op")
    times = BlockTimes(target.device, read=not remeasure)
    if not has_times(target.device):
        rounds = min(rounds, 1)  # the times are those of a data sheet
    with given_gradients(target.model, target.loss, resident=keeps_gradients):
        found = capture_chain(
            target.model,
            target.inputs,
            target.loss,
            kwargs=target.keywords,
            name=target.name,
            meter=meter,
            rounds=rounds,
            known_times=times.find,
            movable=movable,
        )
    if rounds:
        times.keep(found.workload, found.times_spread)
    return found.with_input_held if movable else found


def _graph_of(target: LoadedTarget, kernels: str = "native") -> CapturedGraph:
    from .capture import capture

    loss = target.loss or loss_of
    return capture(
        target.model,
        target.inputs,
        loss,
        kwargs=target.keywords,
        kernels=kernels,
        name=target.name,
    )


@dataclass(frozen=True)
class Read:
    """A target with its workload, for the commands.

    Attributes
    ----------
    lines
        What was captured and assumed, in lines for people.
    """

    target: LoadedTarget
    captured: CapturedChain | CapturedGraph
    lines: tuple[str, ...]

    @property
    def workload(self) -> Chain | Graph:
        """The chain or graph."""
        return workload_of(self.captured)

    @property
    def origin(self) -> StepChanges:
        """How the step was captured, in the form of a plan's setting."""
        from .whole_step.captured_step import bare

        level = "block" if isinstance(self.captured, CapturedChain) else "op"
        structure = workload_hash(bare(self.workload, self.workload.static_bytes))
        return StepChanges(level, structure)


def read_target(
    text: str,
    *,
    level: str | None = None,
    device: str | None = None,
    meter: str | None = None,
    remeasure: bool = False,
    rounds: int = 7,
    movable: bool = False,
) -> Read:
    """The target that `text` names, captured at `level` for `device`.

    ``cpu`` and ``cuda`` are measured. At the op level, any device of `schedsim.workloads.devices`
    may be named: the model is then never allocated, and its times are rooflines. `movable` is as in
    `capture_target`. Where no `meter` is named, workspaces hold all that a budget bounds.
    """
    level = level or "block"
    if device is not None and device.partition(":")[0] not in ("cpu", "cuda", "dry"):
        if remeasure:
            raise SchedsimError(
                f"--remeasure measures, and the times of --device {device} are a roofline",
                hint="leave --remeasure out, or name a device that is here: --device cpu",
            )
        return _for_a_device_elsewhere(text, level, device)
    try:
        target = load_target(text, device)
        captured = capture_target(
            target,
            level,
            meter=meter or meter_of_budgets(target.device),
            remeasure=remeasure,
            rounds=rounds,
            movable=movable,
        )
    except torch.OutOfMemoryError as error:
        why = " ".join(str(error).split()).partition(". GPU")[0]
        raise SchedsimError(
            f"{text} does not fit the device while its step is measured: {why}",
            hint="a smaller batch or a shorter sequence",
        ) from error
    workload = workload_of(captured)
    size = f"{workload.num_stages} stages" if isinstance(workload, Chain) else _ops(workload)
    lines = [f"{text} by {level}: {size}, on {device_name(target.device)}"]
    if target.device.type == "cuda" and is_dry():
        lines.append(LABEL)
    shown = [note for note in captured.notes if level == "block" or note not in lines]
    state = counted_line(target.model, level)
    return Read(target, captured, (lines[0], state, *lines[1:], *shown))


def _for_a_device_elsewhere(text: str, level: str, device: str) -> Read:
    from schedsim.workloads.devices import get_device

    from .costs import roofline_costs

    known = get_device(device)
    if level != "op":
        raise SchedsimError(
            f"--device {device}: blocks are measured, which takes a device that is here",
            hint="--level op gives times of a device elsewhere, or --device cpu",
        )
    target = load_target(text, "meta")
    captured = _graph_of(target, kernels_of(known.name))
    captured = captured.with_costs(roofline_costs(captured, device))
    lines = (f"{text} by op: {_ops(captured.graph)}, roofline of {device} ({known.source})",)
    state = counted_line(target.model, level)
    return Read(target, captured, (*lines, state, *captured.notes))


def _ops(graph: Graph) -> str:
    return f"{graph.num_ops} ops"


def workload_of(captured: CapturedChain | CapturedGraph) -> Chain | Graph:
    """The chain or graph that was captured."""
    return captured.workload if isinstance(captured, CapturedChain) else captured.graph


def _from_file(text: str, device: str) -> LoadedTarget:
    head, _, options = text.partition(",")
    path, colon, function = head.rpartition(":")
    if not colon:
        raise SchedsimError(
            f"{text!r} names no function", hint="write FILE.py:FUNCTION, as my_model.py:build"
        )
    file = Path(path)
    if not file.is_file():
        raise SchedsimError(f"{head}: there is no file {path}", hint="write FILE.py:FUNCTION")
    module = _imported(file)
    build = getattr(module, function, None)
    if not callable(build):
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise SchedsimError(
            f"{path} has no function {function!r}",
            hint=did_you_mean(function, names, "it returns (model, inputs, loss)"),
        )
    try:
        with torch.device(device):
            built = build(**read_options(options))
    except SchedsimError:
        raise
    except Exception as error:
        raise SchedsimError(
            f"{head}: {type(error).__name__}: {_line(error)}",
            hint="the function must run by itself and return (model, inputs, loss)",
        ) from error
    return _moved(_unpacked(built, head), device)


def _imported(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses and pickle look for it there
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except SchedsimError:
        raise
    except Exception as error:
        raise SchedsimError(
            f"{file}: {type(error).__name__}: {_line(error)}", hint="the file must import"
        ) from error
    finally:
        sys.path.pop(0)
    return module


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _unpacked(built: Any, name: str) -> LoadedTarget:
    if isinstance(built, nn.Module):
        example = getattr(built, "example_inputs", getattr(built, "example_input_array", None))
        if example is None:
            raise SchedsimError(
                f"{name} returns a model without inputs",
                hint="return (model, inputs, loss), or set model.example_inputs",
            )
        built = (built, example, getattr(built, "loss_function", None))
    parts = tuple(built) if isinstance(built, tuple | list) else ()
    if len(parts) not in (2, 3) or not isinstance(parts[0], nn.Module):
        raise SchedsimError(
            f"{name} returns a {type(built).__name__} that is not (model, inputs, loss)",
            hint="the loss is a function of the model's output, or None",
        )
    model, inputs, loss = (*parts, None)[:3]
    if loss is not None and not callable(loss):
        raise SchedsimError(f"{name}: the loss is a {type(loss).__name__}", hint="give a function")
    if isinstance(inputs, Mapping):
        return LoadedTarget(name, model, (), loss, dict(inputs))
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return LoadedTarget(name, model, inputs, loss)


def _moved(target: LoadedTarget, device: str) -> LoadedTarget:
    from .torch_private.pytrees import tree_map_only

    def move(tree: Any) -> Any:
        return tree_map_only(Tensor, lambda tensor: tensor.to(device), tree)

    if isinstance(target.loss, nn.Module):
        target.loss.to(device)
    model = target.model.to(device)
    return LoadedTarget(
        target.name, model, move(target.inputs), target.loss, move(dict(target.keywords))
    )


# Sizes of well-known checkpoints whose configuration class defaults to another.
_HF_SIZES: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2-medium": (
        "gpt2",
        {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16},
    ),
    "gpt2-large": (
        "gpt2",
        {"num_hidden_layers": 36, "hidden_size": 1280, "num_attention_heads": 20},
    ),
    "gpt2-xl": ("gpt2", {"num_hidden_layers": 48, "hidden_size": 1600, "num_attention_heads": 25}),
}
_HF_WORDS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "ffn": "intermediate_size",
}


def _from_transformers(text: str, device: str) -> LoadedTarget:
    try:
        import transformers
        from transformers.models.auto import modeling_auto
    except ImportError as error:
        raise MissingDependencyError(
            "hf: models need transformers", hint="pip install transformers"
        ) from error
    name, _, rest = text.partition(",")
    options = {_HF_WORDS.get(key, key): value for key, value in read_options(rest).items()}
    batch, seq = options.pop("batch", 1), options.pop("seq", None)
    family, sizes = _HF_SIZES.get(name, (name, {}))
    known = list(transformers.CONFIG_MAPPING)
    if family not in known:
        raise SchedsimError(
            f"transformers has no model {name!r}",
            hint=did_you_mean(
                family, [*_HF_SIZES, *known], "try hf:gpt2, hf:llama, hf:vit, hf:bert"
            ),
        )
    config = transformers.AutoConfig.for_model(family, **{**sizes, **options})
    if hasattr(config, "use_cache"):
        config.use_cache = False
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        for kind in ("CausalLM", "MaskedLM", "ImageClassification"):
            names: Any = {
                "CausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
                "MaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
                "ImageClassification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
            }[kind]
            if family in names:
                auto = getattr(transformers, f"AutoModelFor{kind}")
                model = auto.from_config(config)
                return LoadedTarget(
                    f"hf:{text}", model, (), None, _hf_inputs(config, kind, batch, seq)
                )
    raise SchedsimError(
        f"hf:{name} is no language or image model", hint="write a file: my_model.py:build"
    )


def _hf_inputs(config: Any, kind: str, batch: int, seq: int | None) -> dict[str, Any]:
    if kind == "ImageClassification":
        shape = (batch, config.num_channels, config.image_size, config.image_size)
        labels = torch.zeros(batch, dtype=torch.long)
        return {"pixel_values": torch.randn(shape), "labels": labels}
    most = getattr(config, "max_position_embeddings", 512)
    ids = torch.randint(config.vocab_size, (batch, seq or min(512, most)))
    return {"input_ids": ids, "labels": ids.clone()}
