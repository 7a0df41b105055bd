"""Parameter counts of models, against those published."""

import pytest

from schedsim.clusters import get_architecture
from schedsim.errors import SchedsimError

# Of the released checkpoints; DeepSeek-V3 without its second-token layer and routing biases, as
# torchtitan counts it; gpt-oss by table 1 of its card, to the parameter in the checkpoints.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-v3": 671_026_404_352,
    "deepseek-v2-lite": 15_706_484_224,
    "mistral-7b": 7_241_732_096,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gemma3-1b": 999_885_952,
    # The released 4B, 12B and 27B have 4,300,079,472, 12,187,325,040 and 27,432,406,640, of which
    # vision encoder and projection are 416,866,032 and 1152 (h + 1).
    "gemma3-4b": 4_300_079_472 - 416_866_032 - 1152 * 2561,
    "gemma3-12b": 12_187_325_040 - 416_866_032 - 1152 * 3841,
    "gemma3-27b": 27_432_406_640 - 416_866_032 - 1152 * 5377,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_exact(name):
    """To the last one."""
    assert get_architecture(name).num_parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),  # "only uses 13B active"
        ("qwen3-235b-a22b", 22.2),
        ("qwen3-30b-a3b", 3.35),
        ("deepseek-v3", 37.6),  # 37B, embedding and head here included
    ],
)
def test_active_parameters(name, billions):
    """What one token passes."""
    assert get_architecture(name).active_parameters == pytest.approx(billions * 1e9, rel=0.01)


def test_an_unknown_model_is_refused_with_the_nearest():
    """One line, and a hint."""
    with pytest.raises(SchedsimError, match="no language model") as caught:
        get_architecture("llama3-8")
    assert "llama3-8b" in caught.value.hint
