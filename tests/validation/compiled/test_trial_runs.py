"""The first run of CUDA code, before any step."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from schedsim.validation.capture import capture  # noqa: E402
from schedsim.validation.compiled import compile_step, trial_runs  # noqa: E402
from schedsim.validation.compiled.fuse import fused  # noqa: E402
from schedsim.validation.compiled.group import Groups  # noqa: E402
from schedsim.validation.dry_cuda import has_times, has_values  # noqa: E402
from schedsim.validation.models import build_model  # noqa: E402
from torch import nn  # noqa: E402

CUDA = torch.device("cuda")


def overwriting_step():
    """A step in which groups write over an input, and read a view that begins at byte 12."""
    layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).sigmoid()
            return x[:, 3:].exp()

    return capture(Net(), (torch.randn(4, 8),), lambda y: y.sum()).program


def test_each_code_runs_once_with_views_where_they_lie(monkeypatch, uncompiled):
    """In both forms; another program in the same groups runs nothing again."""
    groups, ran = Groups(), []
    program = fused(overwriting_step(), groups)
    monkeypatch.setattr(
        trial_runs,
        "_cuda_device",
        lambda program, call: (
            torch.device("cpu") if isinstance(call.target, trial_runs.FusedGroup) else None
        ),
    )
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: torch.no_grad())
    for kind in (trial_runs.FusedGroup, trial_runs.OverwritingGroup):
        call = kind.__call__

        def noted(self, *tensors, call=call):
            ran.append((self.__name__, [t.data_ptr() % 16 for t in tensors]))
            return call(self, *tensors)

        monkeypatch.setattr(kind, "__call__", noted)
    trial_runs.try_on_device(program, groups.tried)
    assert sorted({name for name, _ in ran}) == sorted(
        {code.__name__ for group in groups.known.values() for code in (group, *group.overwritings)}
    )
    assert any("over" in name for name, _ in ran)
    assert 12 in {shift for _, shifts in ran for shift in shifts}
    num_ran = len(ran)
    trial_runs.try_on_device(program, groups.tried)
    assert len(ran) == num_ran


def test_on_a_cpu_nothing_runs(monkeypatch):
    groups = Groups()
    program = fused(overwriting_step(), groups)
    trial_runs.try_on_device(program, groups.tried)
    assert not groups.tried


def test_a_shifted_tensor_is_the_same_elsewhere():
    """Of any strides."""
    tensor = torch.randn(3, 4).t().expand(2, 4, 3)
    shifted = trial_runs._shifted(tensor, 3)
    assert torch.equal(shifted, tensor)
    assert shifted.stride() == tensor.stride()
    assert shifted.data_ptr() % 16 == 12
    assert trial_runs._shifted(tensor, 0) is tensor


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.skipif(
    torch.cuda.is_available() and has_values(CUDA) and not has_times(CUDA),
    reason="Triton's kernels do not run on the CPU",
)
def test_no_step_tunes_kernels(monkeypatch, tmp_path):
    """That takes a buffer as large as the cache of the device, and copies of what is written."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    monkeypatch.setenv("SCHEDSIM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    tuned, at_compile = [], []

    def tune(self, *args, own=CachingAutotuner.autotune_to_one_config, **keywords):
        tuned.append(self)
        return own(self, *args, **keywords)

    def compiled(program, groups, own=compile_step._compiled):
        made = own(program, groups)
        at_compile.append(len(tuned))
        return made

    monkeypatch.setattr(CachingAutotuner, "autotune_to_one_config", tune)
    monkeypatch.setattr(compile_step, "_compiled", compiled)
    built = build_model("gpt2", layers=1, hidden=64, heads=2, seq=32, vocab=100, device="cuda")
    torch._dynamo.reset()
    options = {"budget": 10**11, "compile": True, "effort": 0.1}
    planned = torch.compile(built.model, backend="schedsim", options=options)
    built.loss(planned(*built.inputs)).backward()
    assert at_compile[-1]
    assert len(tuned) == at_compile[-1]
