"""Denoisers: their parameters, and steps that can be planned."""

import pytest

import schedsim
from schedsim import SchedsimError
from schedsim.workloads import PRESETS, SDXLConfig, WorkloadOptions, build_workload
from schedsim.workloads.diffusion import dit_model, sdxl_model


@pytest.mark.parametrize(
    ("name", "millions"), [("dit-s2", 33), ("dit-b2", 130), ("dit-l2", 458), ("dit-xl2", 675)]
)
def test_parameters_of_dit(name, millions):
    """Table 1 of the paper, in millions; the fixed position codes are trained by nobody."""
    config = PRESETS[name]
    count = dit_model(config).num_parameters
    fixed = (config.latent // config.patch) ** 2 * config.hidden
    assert (count + fixed) / 1e6 == pytest.approx(millions, abs=0.6)


def test_parameters_of_sdxl():
    """The released U-Net has "2.6B" in table 1 of the paper."""
    assert sdxl_model(SDXLConfig()).num_parameters == 2_567_463_684


def test_parameters_and_products_of_sdxl_beside_its_library():
    """As many as in the class that runs it, by the published configuration, without memory."""
    diffusers = pytest.importorskip("diffusers", reason="diffusers is not installed")
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = diffusers.UNet2DConditionModel(
            sample_size=128,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=(320, 640, 1280),
            transformer_layers_per_block=(1, 2, 10),
            attention_head_dim=(5, 10, 20),
            cross_attention_dim=2048,
            addition_embed_type="text_time",
            addition_time_embed_dim=256,
            projection_class_embeddings_input_dim=2816,
            use_linear_projection=True,
        )
        added = {"text_embeds": torch.empty(1, 1280), "time_ids": torch.empty(1, 6)}
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            pixels, text = torch.empty(1, 4, 128, 128), torch.empty(1, 77, 2048)
            model(pixels, torch.empty(1), text, added_cond_kwargs=added)
    assert sum(p.numel() for p in model.parameters()) == sdxl_model(SDXLConfig()).num_parameters
    [stage] = sdxl_model(SDXLConfig()).stages
    # Products, convolutions and attention: what has weights, and what keeps statistics of rows.
    heavy = [op for op in stage.forward if op.optional or op.parameter_bytes]
    assert sum(op.flops for op in heavy) == counted.get_total_flops()


def test_a_block_of_dit_by_hand():
    """In elements: norms and what they scale, q, k, v, context, both branches and sums, the MLP."""
    config = PRESETS["dit-b2"]
    chain = build_workload(WorkloadOptions(preset="dit-b2", batch=2)).workload
    tokens, h, vectors = config.tokens * 2, 768, 2
    saved = tokens * h * (2 + 2 + 3 + 1 + 1 + 1 + 1 + 4 + 4 + 1) + 4 * (h // 64) * tokens // 2
    saved += vectors * h * (1 + 6 + 1 + 1)  # silu, modulation, and the vector beside both sums
    assert chain.stages[1].saved_bytes == 2 * saved


def test_a_dit_can_be_planned():
    """Within half of store-all, to the optimum."""
    chain = build_workload(WorkloadOptions(preset="dit-s2", batch=2)).workload
    plan = schedsim.plan(chain, "50%")
    assert plan.status == "optimal"


def test_skips_of_the_unet_live_until_they_are_read():
    """It is a graph, whose first skip is read by the last level's way up, and again in reverse."""
    graph = build_workload(WorkloadOptions(preset="sdxl-unet")).workload
    readers = [op.name for op in graph.ops if any(t.endswith(".conv_in") for t in op.reads)]
    assert any(name.endswith("up0.2.both") for name in readers)
    everything = schedsim.simulate(graph, schedsim.Schedule.store_all(graph))
    assert everything.peak_bytes > 4 * 2 * 2**20


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        ("sdxl-unet", {"granularity": "layer"}),
        ("sdxl-unet", {"layers": 3}),
        ("dit-xl2", {"granularity": "block"}),
        ("dit-xl2", {"seq": 3}),
        ("dit-xl2", {"batch": 0}),
        ("whisper-tiny", {"attention": "eager"}),
    ],
)
def test_options_that_they_do_not_take_are_refused(preset, options):
    """By name, with what to do."""
    with pytest.raises(SchedsimError) as caught:
        build_workload(WorkloadOptions(preset=preset, **options))
    assert caught.value.hint
