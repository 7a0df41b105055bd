"""torchvision beside a torch without CUDA, where its compiled part does not load."""

from __future__ import annotations

from typing import Any

import torch


def torchvision() -> Any:
    """The package; the operators that it looks for are declared where they are missing.

    To be called before another package imports it, as transformers does.
    """
    if not hasattr(torch.ops.torchvision, "nms"):
        try:
            import torchvision as found
        except RuntimeError:  # of the operator that it looks for
            _declare()
        else:
            return found
    import torchvision as found

    return found


_library: list[torch.library.Library] = []


def _declare() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _library.append(library)
