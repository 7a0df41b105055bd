"""One small configuration of every model: seconds on one core, activations of some megabytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from schedsim import Chain, Graph, Schedule

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {"layers": 8, "hidden": 128, "batch": 256, "dropout": 0.1}),
    "gpt2": (
        "gpt2",
        {"layers": 4, "hidden": 64, "heads": 4, "vocab": 500, "seq": 64, "batch": 4},
    ),
    "llama": (
        "llama2-7b",
        {"layers": 4, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 172, "vocab": 500}
        | {"seq": 64, "batch": 4},
    ),
    "vit": (
        "vit-b16",
        {"layers": 4, "hidden": 64, "heads": 4, "patch": 8, "image": 64, "classes": 10}
        | {"batch": 4, "dropout": 0.1},
    ),
    "resnet": (
        "resnet50",
        {"depths": (1, 2, 2, 1), "width": 16, "image": 64, "classes": 10, "batch": 8},
    ),
    "unet": ("unet", {"levels": 3, "width": 8, "image": 64, "batch": 4, "dropout": 0.1}),
    "lstm": ("lstm", {"seq": 12, "hidden": 64, "features": 32, "batch": 64, "steps": 1}),
}


def random_schedule(rng: np.random.Generator, workload: Chain | Graph) -> Schedule:
    """A legal schedule that trains: forwards repeated anywhere before their backwards."""
    names = workload.op_names
    runs: list[int] = []
    for i in range(len(names)):
        for _ in range(int(rng.integers(0, 3))):
            again = int(rng.integers(0, i)) if i else 0
            done = f"B{names[again][1:]}" in names[:i]
            if i and names[again].startswith("F") and not done:
                runs.append(again)
        runs.append(i)
    return Schedule(names, runs)


def clear_gradients(model: Any, *, resident: bool = False) -> None:
    """No gradients, as a loop leaves them; or zeros, for a step that counts them as `resident`."""
    import torch

    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if resident else None


def outcome(model: Any, step: Any) -> list[Any]:
    """Loss, gradients and buffers after `step`, from the same start every time; model unchanged."""
    import torch

    state = {key: value.clone() for key, value in model.state_dict().items()}
    clear_gradients(model)
    torch.manual_seed(1)
    loss = step()
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters())]
    found += [b.clone() for b in model.buffers()]
    model.load_state_dict(state)
    return found
