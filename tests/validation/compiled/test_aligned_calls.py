"""Code for arguments at any address: no argument is copied to align it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.compiled.aligned_calls import AlignedCalls  # noqa: E402
from schedsim.validation.dry_cuda import has_times, has_values  # noqa: E402
from torch import nn  # noqa: E402

import schedsim  # noqa: E402

CUDA = torch.device("cuda")


def test_other_addresses_get_other_code_once():
    """By the positions that lie off 16 bytes, of the arguments on CUDA."""
    made = []

    def make(apart):
        made.append(apart)
        return lambda tensors: (apart, [float(t[0]) for t in tensors])

    call = AlignedCalls(make, (0, 2))
    whole = torch.arange(16.0)
    aligned, apart = whole[:8], whole[1:9]
    assert call([aligned, aligned, aligned]) == ((), [0.0, 0.0, 0.0])
    assert call([apart, apart, aligned]) == ((0,), [1.0, 1.0, 0.0])
    assert call([apart, apart, apart]) == ((0, 2), [1.0, 1.0, 1.0])
    assert call([apart, aligned, aligned]) == ((0,), [1.0, 0.0, 0.0])
    assert made == [(), (0,), (0, 2)]


class Reader(nn.Module):
    """Reads in groups what it is given, or a part of a product that begins at any byte."""

    def __init__(self, of_product):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("weight", torch.ones(256, 512) if of_product else None)

    def forward(self, x):
        if self.weight is not None:
            x = (x @ self.weight)[:, 255:]
        return torch.tanh(x * 3).mean() * self.scale


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.skipif(
    torch.cuda.is_available() and has_values(CUDA) and not has_times(CUDA),
    reason="Triton's kernels do not run on the CPU",
)
@pytest.mark.parametrize("of_product", [False, True], ids=["given", "computed"])
def test_a_slice_takes_no_copy(of_product, monkeypatch, tmp_path):
    """Whatever the address of the input is, each step requests what was planned."""
    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))
    model, data = Reader(of_product).cuda(), torch.rand(65536 * 256 + 4, device="cuda")
    slices = [data[k : k + 65536 * 256].view(65536, 256) for k in (0, 1, 2)]
    module = schedsim.rematerialize(
        model, (slices[0],), 10**12, lambda out: out, compile=True, effort=0.1
    )
    planned = module.prepare(slices[0])
    assert any("compiled:" in note for note in planned.captured.notes)
    workload = planned.captured.workload
    resident = workload.static_bytes + sum(workload.inputs.values())
    for x in slices:
        for _ in range(2):  # the first makes code for the address
            model.zero_grad(set_to_none=True)
            before = torch.cuda.memory_stats()["requested_bytes.all.current"]
            torch.cuda.reset_peak_memory_stats()
            planned.module(x).backward()
            peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        assert peak <= planned.plan.peak_bytes - resident
