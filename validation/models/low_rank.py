"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) beside frozen products."""

from __future__ import annotations

from torch import Tensor, nn


class LowRankLinear(nn.Module):
    """A frozen product, plus a trained one through `rank` numbers a row (their section 4.1)."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(requires_grad=False)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Last axis from the product's inputs to its outputs."""
        whole: Tensor = self.frozen(x) + self.up(self.down(x))
        return whole


def adapt(model: nn.Module, names: tuple[str, ...], rank: int) -> None:
    """Freeze `model`, and put adapters of `rank` beside its products called one of `names`.

    Raises
    ------
    ValueError
        There is no such product.

    Examples
    --------
    >>> model = nn.ModuleDict({"query": nn.Linear(8, 8), "key": nn.Linear(8, 8)})
    >>> adapt(model, ("query",), 2)
    >>> [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    ['query.down.weight', 'query.up.weight']
    """
    model.requires_grad_(requires_grad=False)
    found = [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if name in names and isinstance(child, nn.Linear)
    ]
    if not found:
        raise ValueError(f"no product is called one of {', '.join(names)}")
    for module, name, frozen in found:
        setattr(module, name, LowRankLinear(frozen, rank))
