"""Inductor: decompositions, which ops it fuses, compiling a graph.

Settings of inductor are changed for our own compilations alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .op_modes import without_modes

aten = torch.ops.aten

# Inductor would make scatters of the first two, or gathers, which are no quicker than the kernels.
# Its evenly spaced numbers are others than eager's in the last bit, such as 3e-8 for the 0 between
# -1 and 1: what is compared with them, as a bucket's border, may lie on the other side.
_KEPT_WHOLE = (
    aten.embedding_dense_backward.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.linspace.default,
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """How inductor takes ops apart before it fuses them."""
    return _decompositions(draws_as_eager())


@functools.cache
def _decompositions(_of_eager_draws: bool) -> dict[Any, Callable[..., Any]]:
    import torch._inductor.lowering  # noqa: F401 - some decompositions look there
    from torch._inductor.decomposition import select_decomp_table

    table = dict(select_decomp_table())
    for op in _KEPT_WHOLE:
        table.pop(op, None)
    return table


def traced(
    function: Callable[..., Any], examples: Sequence[torch.Tensor], mode: FakeTensorMode
) -> torch.fx.Graph:
    """`function` on flat fake tensors as a graph of decomposed ops."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with mode, torch.no_grad():
        made = make_fx(function, decomposition_table=decompositions())(*examples)
    graph: torch.fx.Graph = made.graph
    return graph


def random_from_seed(size: Sequence[int], seed: torch.Tensor, kind: str) -> torch.Tensor:
    """Numbers that follow from `seed` alone, as inductor draws them; ``rand`` or ``randn``."""
    from torch._inductor import inductor_prims

    made: torch.Tensor = inductor_prims.random(size, seed, kind)
    return made


def random_op() -> Any:
    """The op behind `random_from_seed`, which graphs call."""
    import torch._inductor.inductor_prims

    return torch.ops.prims.inductor_random.default


def random_integer_op() -> Any:
    """The op that makes integers of a range from a seed, which graphs call."""
    import torch._inductor.inductor_prims

    return torch.ops.prims.inductor_randint.default


def convert_op() -> Any:
    """The op that changes a number format, which graphs call."""
    return torch.ops.prims.convert_element_type.default


def draws_as_eager() -> bool:
    """Whether inductor is told to leave all random numbers to the ops of eager mode."""
    from torch._inductor import config

    return bool(config.fallback_random)


def draw_seeds(count: int, device: str) -> torch.Tensor:
    """`count` seeds drawn from the device's generator, as inductor's own code draws them."""
    limits = torch.iinfo(torch.int64)
    return torch.randint(limits.min, limits.max, [count], device=device)


@contextmanager
def outside_of_traces() -> Iterator[None]:
    """As if no trace were going on: for graphs of our own that are made within another's."""
    from torch._guards import tracing

    with tracing(None), without_modes():
        yield


@contextmanager
def own_settings() -> Iterator[None]:
    """Inductor's settings for our own graphs, as they were afterwards."""
    from torch._inductor import config

    settings = {
        "reorder_for_peak_memory": False,
        "reorder_for_locality": False,
        # Checked once when the group is made; in each call it would cost as much as the launch.
        "size_asserts": False,
        "alignment_asserts": False,
        # A graph of CUDA has a pool of memory of its own, which no plan counts.
        "triton.cudagraphs": False,
        "assume_aligned_inputs": False,
    }
    with config.patch(settings):
        yield


def compile_function(
    function: Callable[..., Any], examples: Sequence[torch.Tensor], mode: FakeTensorMode
) -> Callable[[list[Any]], Sequence[Any]]:
    """Inductor's code for `function` of flat tensors; it takes its arguments in one list.

    On CUDA the arguments of each call must be aligned as `examples` are: the code neither checks
    that nor copies one that is not.
    """
    from torch._inductor.compile_fx import compile_fx_inner
    from torch.fx.experimental.proxy_tensor import make_fx

    with own_settings(), mode, torch.no_grad():
        made = make_fx(function, decomposition_table=decompositions())(*examples)
        fixed = tuple(range(len(examples)))  # as parameters, whose addresses inductor trusts
        compiled: Any = compile_fx_inner(made, list(examples), static_input_idxs=fixed)
    # Without the bookkeeping of a whole compiled step around it.
    found: Callable[[list[Any]], Sequence[Any]] = getattr(compiled, "current_callable", compiled)
    return found


def compile_graph(
    graph_module: torch.fx.GraphModule, examples: Sequence[Any]
) -> Callable[..., Any]:
    """A graph of Dynamo as inductor's own backend compiles it, in the settings of the caller.

    Sizes may be open. The graph itself stays as it is, which inductor's passes would change.
    """
    from torch._inductor.compile_fx import compile_fx

    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    copied = torch.fx.GraphModule(graph_module, graph)
    copied.meta.update(graph_module.meta)
    made: Any = compile_fx(copied, list(examples))
    found: Callable[..., Any] = made
    return found


@contextmanager
def kernels_later() -> Iterator[list[Callable[[], None]]]:
    """Leave kernels of C++ to compilers that run beside this thread, as inductor itself does.

    What is compiled in the block may be called when each function of the list has been called,
    which waits, and raises what a compiler says. Other threads are not affected.
    """
    _defer_waits_of_threads()
    waits: list[Callable[[], None]] = []
    before, _waiting.later = getattr(_waiting, "later", None), waits
    try:
        yield waits
    finally:
        _waiting.later = before


_waiting = threading.local()
"""Each thread's list of waits for `kernels_later`, in whose block it is."""


def _defer_waits_of_threads() -> None:
    """Exchange inductor's wait, for good: threads may begin and end in any order."""
    from torch._inductor.async_compile import AsyncCompile

    own: Callable[[Any, dict[str, Any]], None] = AsyncCompile.wait
    if hasattr(own, "defers"):
        return

    def wait(compilers: Any, scope: dict[str, Any]) -> None:
        later = getattr(_waiting, "later", None)
        if later is None:
            own(compilers, scope)
        else:
            later.append(functools.partial(own, compilers, scope))

    wait.defers = True  # type: ignore[attr-defined]
    AsyncCompile.wait = wait  # type: ignore[method-assign, assignment]


def prefers_channels_last(convolutions: Sequence[Sequence[Any]], num_ops: int) -> bool:
    """Whether inductor would lay out a step with these convolutions in channels-last.

    Parameters
    ----------
    convolutions
        The arguments of each call of ``aten.convolution``, with fake tensors.
    num_ops
        Of the whole step: on a GPU, a few convolutions among many other ops decide nothing.
    """
    from torch._inductor.graph import GraphLowering

    graph = torch.fx.Graph()
    for arguments in convolutions:
        made = [_placeholder(graph, item) for item in arguments]
        graph.call_function(aten.convolution.default, tuple(made))
    on_cpu = all(args[0].device.type == "cpu" for args in convolutions)
    if not on_cpu and num_ops >= 300 * len(convolutions):  # inductor's own limit
        return False
    module = torch.fx.GraphModule({}, graph)
    return bool(GraphLowering.decide_layout_opt(module, is_inference=False))


def _placeholder(graph: torch.fx.Graph, item: Any) -> Any:
    if not isinstance(item, torch.Tensor):
        return item
    node = graph.placeholder(f"tensor{len(graph.nodes)}")
    node.meta["val"] = item
    return node
