"""One way to ask for the bytes of a piece of work, whatever counts them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import (  # noqa: E402
    AllocatorMeter,
    CudaMeter,
    StorageMeter,
    cuda_peak,
    library_workspace_bytes,
)
from schedsim.validation.measure.allocator import allocations  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("label", ["mlp", "gpt2", "llama", "vit", "lstm"])
def test_both_meters_of_the_cpu_agree(label):
    """Storages and the allocator's record within 0.5 %, where kernels need little scratch."""
    name, options = SMALL[label]
    model, inputs, loss = build_model(name, **options)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step():
        loss(model(*inputs)).backward()

    step()
    [tracked] = StorageMeter().read(step)
    [recorded] = AllocatorMeter().read(step)
    assert recorded.peak_bytes == pytest.approx(tracked.peak_bytes, rel=0.005)


@pytest.mark.parametrize("meter", [StorageMeter(), AllocatorMeter()], ids=["storage", "allocator"])
def test_a_meter_reads_several_phases(meter):
    """Each relative to the start of all: what the first made is freed by the second.

    The allocator also gives the scalars 1 and 2 some bytes.
    """
    made = []
    first, second = meter.read(
        lambda: made.append(torch.zeros(1000) + 1),
        lambda: made.append(made.pop() * 2),
    )
    assert (first.peak_bytes, first.end_bytes) == pytest.approx((8000, 4000), abs=16)
    assert (second.peak_bytes, second.end_bytes) == pytest.approx((8000, 4000), abs=16)


def test_a_reading_that_another_record_has_ended_is_refused():
    """As around a loop in which a plan is made: its ops are measured; half a peak is none."""

    def measures_ops():
        torch.zeros(1000)
        allocations(lambda: torch.ones(10))

    with pytest.raises(SchedsimError, match="ops were measured meanwhile") as error:
        AllocatorMeter().read(measures_ops)
    assert "run the loop once" in error.value.hint
    [again] = AllocatorMeter().read(lambda: torch.zeros(1000) + 1)
    assert again.peak_bytes == pytest.approx(8000, abs=16)


@pytest.mark.gpu
@needs_cuda
def test_cuda_peaks_nest():
    """Requested <= allocated <= reserved, and requested is what was asked for."""
    library_workspace_bytes()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    peak, kept = cuda_peak(lambda: torch.zeros(1000, device="cuda") + 1)
    assert peak.requested_bytes - before == 8000
    assert peak.requested_bytes <= peak.allocated_bytes <= peak.reserved_bytes
    [reading] = CudaMeter().read(lambda: kept * 2)
    assert (reading.peak_bytes, reading.end_bytes) == (4000, 4000)
