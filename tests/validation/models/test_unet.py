"""The U-Net: its published size, skips of the right sizes, and blocks that are the model."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.models.unet import build_unet  # noqa: E402


def small():
    torch.manual_seed(0)
    return build_unet(levels=3, width=4, image=16, classes=5, batch=2)


def test_the_default_has_the_published_size():
    """31.0 million parameters (Ronneberger et al. 2015, with norms in place of biases)."""
    with torch.device("meta"):
        model = build_unet(image=16).model
    assert sum(p.numel() for p in model.parameters()) == 31_037_698


def test_the_output_is_a_class_for_each_pixel():
    """And the loss a scalar that reaches every parameter."""
    model, (images,), loss = small()
    out = model(images)
    assert out.shape == (2, 5, 16, 16)
    loss(out).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_its_blocks_run_one_by_one_are_the_model():
    """Each on what it reads by name; skips are read long after they are made."""
    model, (images,), _ = small()
    model.eval()
    values = {"input": images}
    for name, module, reads in model.blocks():
        values[name] = module(*(values[read] for read in reads))
    assert torch.equal(values["leave"], model(images))
    reads = {name: found for name, _, found in model.blocks()}
    assert reads["up0"] == ("down2", "down1")
    assert reads["up2"] == ("up1", "enter")


def test_dropout_is_in_the_deepest_level_alone():
    """Where it is asked for."""
    model = build_unet(levels=2, width=2, image=8, dropout=0.5).model
    dropping = [name for name, m in model.named_modules() if isinstance(m, torch.nn.Dropout2d)]
    assert len(dropping) == 1
    assert dropping[0].startswith("down.1.")
