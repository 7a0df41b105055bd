"""Names of ops: the module they come from, then the op."""

from __future__ import annotations

import re

import torch

from ..torch_private.graph_roles import is_gradient_sum, module_path, node_sequence_number
from .fronts import Span, Traced
from .program import Program


class Namer:
    """Finds the modules of nodes of a trace, and gives the calls of a program unique names."""

    def __init__(self, traced: Traced) -> None:
        # Sequence number of an autograd node -> path of the innermost module. Modules are left from
        # the inside out, so that the inner modules are written last.
        self.paths: dict[int, str] = {}
        self.elsewhere = "loss" if traced.has_loss else ""
        step = Span(0, 0, "")
        starts: list[int] = []
        for span in reversed(traced.spans):
            for number in range(span.start, span.stop):
                self.paths[number] = span.path
            if not step.start <= span.start <= span.stop <= step.stop:
                step = span  # a whole pass over the step
                starts.append(span.start)
        for start in starts:  # ops before the first autograd node carry the number before
            self.paths[start - 1] = ""

    def module(self, node: torch.fx.Node) -> str:
        """Path of the module whose forward or backward the node belongs to; it may be empty."""
        told = module_path(node)
        if told is not None:
            return clean(told)
        if is_gradient_sum(node):
            return ""  # the engine made it, and its number belongs to another node
        return self.paths.get(node_sequence_number(node), self.elsewhere)

    def place(self, node: torch.fx.Node) -> str:
        """The node's place in words, for errors."""
        module = self.module(node)
        return f"module {module!r}" if module else "the step"

    @staticmethod
    def name(program: Program) -> None:
        """Name every call: ``h.0.mlp.addmm``, ``grad.h.0.mlp.mm``, repeats numbered ``#2``."""
        counts: dict[str, int] = {}
        for call in program.calls:
            handed_over = call.name in ("loss.grad", "outside")
            parts = ["grad"] if call.phase == "backward" and not handed_over else []
            parts += [call.module] if call.module else []
            parts.append(short_op_name(call.name))
            name = ".".join(parts)
            counts[name] = counts.get(name, 0) + 1
            call.name = name if counts[name] == 1 else f"{name}#{counts[name]}"


def short_op_name(op: str) -> str:
    """``batch_norm`` for ``_native_batch_norm_legit_functional``, and so on."""
    op = op.strip("_").removeprefix("native_").removesuffix("_legit_functional")
    op = op.removeprefix("scaled_dot_product_").removesuffix("_data")
    op = op.removesuffix("_backward").removesuffix("_dense").removesuffix("_for_cpu")
    return op.removesuffix("_forward")


def clean(path: str) -> str:
    """Dynamo's ``L['self'].model.h[0].mlp`` or ``...modules['h']`` as ``h.0.mlp``."""
    path = re.sub(r"^L\['\w+'\]\.?", "", path)
    path = re.sub(r"\._modules\['([^']+)'\]", r".\1", path)
    path = re.sub(r"\[['\"]?([^'\"\]]+)['\"]?\]", r".\1", path).strip(".")
    return "" if path == "model" else path.removeprefix("model.")
