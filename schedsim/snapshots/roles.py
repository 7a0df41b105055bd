"""The role of a block, and the place of its request, both from the stack of the request."""

from __future__ import annotations

from collections.abc import Sequence

from .reading import Frame

PARAMETER, GRADIENT, OPTIMIZER = "parameter", "gradient", "optimizer"
ACTIVATION, WORKSPACE, UNKNOWN = "activation", "workspace", "before the record"
LEFT_OVER = "left from earlier steps"
ROLES = (PARAMETER, GRADIENT, OPTIMIZER, ACTIVATION, LEFT_OVER, WORKSPACE, UNKNOWN)

_WORKSPACE_NAMES = ("CUDABlas", "BlasWorkspace", "cublasLt", "cudnn_frontend", "CudnnWorkspace")
_BACKWARD_NAMES = ("torch::autograd::Engine", "_engine_run_backward", "AccumulateGrad")
# What copies gradients into buckets, made in a forward pass: DistributedDataParallel.
_BUCKET_NAME, _BUCKET_FILE = "c10d::Reducer", "/torch/nn/parallel/distributed.py"
_OPTIMIZER_FILES = ("/torch/optim/", "/apex/optimizers/", "/bitsandbytes/optim/")
_OPTIMIZER_STEPS = ("optimizer_step", "step_optimizer")
# Functions, of torch.nn.Module among others, that put parameters on a device.
_PARAMETER_NAMES = ("_apply", "to_empty", "reset_parameters", "__init__", "load_state_dict")


def role_of(frames: Sequence[Frame], *, known: bool = True) -> str:
    """One of `ROLES`, from the stack of a request, innermost first.

    `LEFT_OVER` is not among the answers: a stack does not tell how long a block lives.
    Without C++ frames, requests of a backward pass have no stack, as autograd makes them in a
    thread of its own. So a `known` request with an empty stack counts as a gradient.

    Examples
    --------
    >>> role_of([Frame("/lib/torch/optim/adamw.py", 3, "_init_group")])
    'optimizer'
    >>> role_of([Frame("model.py", 9, "forward")])
    'activation'
    """
    if not known:
        return UNKNOWN
    names = [frame.name for frame in frames]
    if any(part in name for name in names for part in _WORKSPACE_NAMES):
        return WORKSPACE
    if any(part in frame.file for frame in frames for part in _OPTIMIZER_FILES):
        return OPTIMIZER
    if any(name in _OPTIMIZER_STEPS for name in names):
        return OPTIMIZER
    if not frames or any(part in name for name in names for part in _BACKWARD_NAMES):
        return GRADIENT
    python = [frame for frame in frames if frame.file.endswith(".py")]
    if any(_BUCKET_NAME in name for name in names) or any(
        f.file.endswith(_BUCKET_FILE) for f in python[:1]
    ):
        return GRADIENT
    if any(f.name == "forward" or f.name == "_call_impl" for f in python):
        return ACTIVATION
    in_modules = [f for f in python if "/torch/nn/" in f.file or f.name == "__init__"]
    if any(f.name in _PARAMETER_NAMES for f in in_modules):
        return PARAMETER
    return ACTIVATION


def place_of(frames: Sequence[Frame]) -> str:
    """The innermost line of the user's code, or else of any Python code, as ``file:line name``.

    Examples
    --------
    >>> place_of([Frame("/p/torch/nn/linear.py", 5, "forward"), Frame("/me/net.py", 7, "forward")])
    'net.py:7 forward'
    """
    python = [frame for frame in frames if frame.file.endswith(".py")]
    own = [frame for frame in python if "/torch/" not in frame.file]
    named = [frame for frame in frames if frame.name.startswith("torch::autograd::generated::")]
    if not own and named:
        return named[0].name.removeprefix("torch::autograd::generated::").partition("(")[0]
    chosen = next(iter(own or python), None)
    if chosen is None:
        return "autograd" if frames else "no stack"
    return f"{chosen.file.rpartition('/')[2]}:{chosen.line} {chosen.name}"
