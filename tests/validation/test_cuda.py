"""The block level on a CUDA device."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.campaigns.random_schedules import random_schedule  # noqa: E402
from schedsim.validation.dry_cuda import has_times, has_values  # noqa: E402
from schedsim.validation.targets import capture_target, load_target, read_target  # noqa: E402
from schedsim.validation.validate import validate  # noqa: E402

from schedsim import Schedule  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda")
FULL_SIZE = (
    "model:gpt2,layers=6,hidden=512,heads=8,seq=512,batch=8",
    "model:llama3.2-1b,layers=4,hidden=512,heads=8,kv_heads=2,ffn=2048,seq=512,batch=8,dtype=bf16",
    "model:vit-b16,layers=6,hidden=384,heads=6,batch=32",
    "model:resnet50,image=128,batch=32",
    "model:unet,width=32,image=128,batch=8",
    "model:lstm,seq=64,hidden=512",
)
SMALL = (
    "model:gpt2,layers=2,hidden=64,heads=2,seq=64,vocab=500,batch=2",
    "model:llama3.2-1b,layers=2,hidden=64,heads=2,kv_heads=1,ffn=128,vocab=500,seq=64,batch=2,"
    "dtype=bf16",
    "model:vit-b16,layers=2,hidden=48,heads=3,image=32,batch=2",
    "model:resnet50,width=4,image=32,batch=2",
    "model:unet,width=8,image=32,batch=2",
    "model:lstm,seq=16,hidden=32",
)
# Where ops compute on the CPU, in place of a device that is not there, models are small.
TARGETS = FULL_SIZE if has_times(CUDA) or not has_values(CUDA) else SMALL


@pytest.mark.parametrize("text", TARGETS)
def test_requested_bytes_are_predicted(text):
    """Store-all and three random schedules: peak within 1 % and 1 MiB, results nearly equal."""
    target = load_target(text, "cuda")
    captured = capture_target(target, rounds=0)
    rng = np.random.default_rng(0)
    schedules = [Schedule.store_all(captured.workload)]
    schedules += [random_schedule(captured.workload, rng) for _ in range(3)]
    for schedule in schedules:
        report = validate(target, captured, schedule, rounds=0)
        assert [check.says for check in report.checks if not check.holds] == []


@pytest.mark.skipif(not has_times(CUDA), reason="the dry device has no times")
def test_times_are_predicted():
    """Replaying every block of a GPT-2: overhead within 3 points."""
    read = read_target(TARGETS[0], device="cuda", remeasure=True)
    names = list(read.workload.op_names)
    at = names.index("loss")
    for backward in names[at + 1 :]:
        names.insert(names.index(backward), f"F{backward[1:]}")
    report = validate(read.target, read.captured, Schedule.from_names(names), rounds=15)
    assert [check.says for check in report.checks if not check.holds] == []
