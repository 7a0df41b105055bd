"""Modules that tell each stage of a pipeline which of its layers run again."""

from __future__ import annotations

from collections.abc import Sequence

from ..pipelines.run import PipelineRun
from ..units import format_bytes, format_seconds
from .code import fill

_MEGATRON = '''"""Recomputation of each pipeline stage, for megatron-core 0.19. Written by schedsim.

Beside the arguments of the training, those of this plan: $(python THIS_FILE)
In the function that makes the model, on every rank: recompute_by_stage(model)
"""

WORKLOAD = {name}
# Megatron's arguments have one number of layers for all stages: a step with the best of them.
WITH_ONE_NUMBER = {alike}
# Stage of the pipeline -> its first layers, whose forward runs again in the backward; all of them.
RECOMPUTED = {again}
NUM_LAYERS = {num}
NUM_RANKS = {ranks}
ARGUMENTS = {arguments}


def recompute_by_stage(model):
    """Set the number of layers of each transformer block of `model`, by its stage; `model`."""
    from copy import copy

    from megatron.core import parallel_state
    from megatron.core.transformer.transformer_block import TransformerBlock

    size = parallel_state.get_pipeline_model_parallel_world_size()
    if size != NUM_RANKS:
        raise ValueError(f"{{size}} pipeline ranks, but the plan was made for {{NUM_RANKS}}")
    for block in model.modules():
        if not isinstance(block, TransformerBlock):
            continue
        rank = parallel_state.get_pipeline_model_parallel_rank()
        stage = rank + size * (block.vp_stage or 0)
        if len(block.layers) != NUM_LAYERS[stage]:
            raise ValueError(
                f"stage {{stage}} has {{len(block.layers)}} layers, but the plan was made for "
                f"{{NUM_LAYERS[stage]}}: give the arguments of this file"
            )
        block.config = copy(block.config)  # the stages of a rank share one
        block.config.recompute_num_layers = RECOMPUTED[stage]
    return model


if __name__ == "__main__":
    print(*ARGUMENTS)
'''

_TORCH = '''"""Recomputation of each pipeline stage, for torch.distributed.pipelining.

Written by schedsim. On the rank that holds a stage, before PipelineStage(module, stage, ...):
checkpoint_stage(module.layers, stage)
"""

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

WORKLOAD = {name}
# Stage of the pipeline -> its layers, counted from its first, whose forward runs again in the
# backward; and how many it has.
RECOMPUTED = {again}
NUM_LAYERS = {num}


def checkpoint_stage(layers, stage):
    """Checkpoint in place those of `layers`, a ModuleList or Sequential, that the plan says."""
    if len(layers) != NUM_LAYERS[stage]:
        raise ValueError(
            f"stage {{stage}} has {{len(layers)}} layers, but the plan was made for "
            f"{{NUM_LAYERS[stage]}}"
        )
    for i in RECOMPUTED[stage]:
        layers[i] = checkpoint_wrapper(layers[i])  # names of parameters stay
    return layers
'''


def megatron(
    name: str,
    again: Sequence[int],
    num_layers: Sequence[int],
    num_ranks: int,
    alike: PipelineRun,
) -> str:
    """A module with the arguments of a layout, and a function that sets a number for each stage.

    Parameters
    ----------
    again, num_layers
        For each stage how many of its first layers run again, and how many it has.
    alike
        The best with one number for all stages.
    """
    rows = ["t" * num for num in num_layers]
    layout = "|".join(rows)
    arguments = [
        "--pipeline-model-parallel-size",
        str(num_ranks),
        "--pipeline-model-parallel-layout",
        f"E{layout}L",
    ]
    if any(again):
        arguments += ["--recompute-granularity", "full", "--recompute-method", "block"]
        arguments += ["--recompute-num-layers", str(max(again))]
    says = f"{format_seconds(alike.makespan_s)}, {format_bytes(alike.peak_bytes)} a device"
    return fill(
        _MEGATRON,
        name=name,
        again=tuple(again),
        num=tuple(num_layers),
        ranks=num_ranks,
        arguments=tuple(arguments),
        alike=says,
    )


def torch(name: str, again: Sequence[Sequence[int]], num_layers: Sequence[int]) -> str:
    """A module with a function that checkpoints layers of a stage."""
    return fill(_TORCH, name=name, again=tuple(map(tuple, again)), num=tuple(num_layers))
