"""The meters, against sizes that are known and against each other."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from schedsim.validation.measure import (  # noqa: E402
    AllocatorMeter,
    CudaMeter,
    StorageMeter,
    StorageTracker,
    Timing,
    count_flops,
    cuda_peak,
    library_workspace_bytes,
    ratio,
    storage_bytes,
    time_interleaved,
)
from schedsim.validation.models import build_model  # noqa: E402
from small_models import SMALL  # noqa: E402

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_views_share_their_storage():
    """A view, a transpose and the base are one storage; in-place ops make none."""
    with StorageTracker() as tracker:
        x = torch.zeros(100, 10)
        y = x[:50].t()
        y.add_(1)
        assert tracker.live_bytes == 4000
        z = x * 2
        assert tracker.live_bytes == 8000
        del z
        assert tracker.live_bytes == 4000
    assert storage_bytes([x, y]) == 4000


def test_peaks_are_told_by_kind():
    """What was there, what was made, and what came and went in between."""
    weight = torch.zeros(10)
    with StorageTracker() as tracker:
        tracker.add(weight, "static")
        kept = torch.zeros(100)
        tracker.label_fresh("activations")
        tracker.mark()
        made = (kept * 2).exp()  # the product dies: 400 B of workspace
        tracker.label_fresh("activations")
    assert tracker.kinds_at_peak() == {"static": 40, "activations": 800, "workspace": 400}
    assert made.numel() == 100


def test_a_backward_is_seen():
    """Gradients and their temporaries, by hand: x -> x * w -> sum."""
    w = torch.ones(1000, requires_grad=True)
    w.grad = torch.zeros(1000)
    with StorageTracker() as tracker:
        tracker.add([w, w.grad], "static")
        loss = (torch.ones(1000) * w).sum()  # input and product: 8000; the product dies
        tracker.mark()
        loss.backward()
    # Alive before: w, its gradient, x, the scalars. The product of the gradient is made new.
    assert tracker.live_bytes == 8000 + 4
    assert tracker.peak.total_bytes >= 8000 + 4000 + 4000


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


def test_times_are_compared_round_by_round():
    """A function twice as slow in every round has ratio 2, whatever the rounds were like."""
    assert ratio([2.0, 20.0, 4.0], [1.0, 10.0, 2.0]).median_s == 2.0
    assert Timing.of([1.0, 2.0, 3.0]).median_s == 2.0
    order = []
    time_interleaved(
        {"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2, warm_up=0
    )
    assert order == ["a", "b", "b", "a"]


def test_flops_of_a_step_are_those_of_its_products():
    """Forward 2mnk, backward twice that."""
    layer = torch.nn.Linear(30, 20, bias=False)
    x = torch.ones(10, 30, requires_grad=True)
    assert count_flops(lambda: layer(x).sum().backward()) == 3 * 2 * 10 * 20 * 30


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
