"""The vision transformer: its published size, patches in order, and the class token."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models.vit import Patches, build_vit  # noqa: E402


def test_the_default_is_vit_b_16():
    """86.6 million parameters."""
    with torch.device("meta"):
        model = build_vit().model
    assert sum(p.numel() for p in model.parameters()) == 86_567_656


def test_patches_are_projected_one_by_one_in_rows():
    """A patch's token is the product of its pixels with the filters; positions are added."""
    torch.manual_seed(0)
    patches = Patches(image=8, patch=4, hidden=6, dropout=0.0)
    images = torch.randn(2, 3, 8, 8)
    out = patches(images)
    assert out.shape == (2, 5, 6)
    weight = patches.projection.weight.flatten(1)
    for k, (row, column) in enumerate([(0, 0), (0, 4), (4, 0), (4, 4)]):
        pixels = images[:, :, row : row + 4, column : column + 4].flatten(1)
        want = pixels @ weight.T + patches.projection.bias + patches.positions[0, k + 1]
        torch.testing.assert_close(out[:, k + 1], want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        out[:, 0], (patches.token + patches.positions[:, :1]).expand(2, 1, 6)[:, 0]
    )


def test_the_class_is_read_off_the_first_token_which_sees_all():
    """Every pixel counts; dropout only in training."""
    torch.manual_seed(0)
    options = {"layers": 2, "hidden": 16, "heads": 2, "patch": 4, "image": 8, "classes": 3}
    model, (images,), loss = build_vit(**options, batch=2, dropout=0.5)
    model.eval()
    assert torch.equal(model(images), model(images))
    images.requires_grad_()
    loss(model(images)).backward()
    assert (images.grad.abs().amax(dim=1) > 0).all()
    model.train()
    assert not torch.equal(model(images), model(images))
