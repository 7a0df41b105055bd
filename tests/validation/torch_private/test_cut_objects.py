"""Objects in inductor's cache that were cut off are made anew."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fused_steps import chain_program  # noqa: E402
from schedsim.validation.compiled.group import CompileWarning, Groups  # noqa: E402
from schedsim.validation.torch_private.cut_objects import with_whole_objects  # noqa: E402
from torch._inductor import config  # noqa: E402
from torch._inductor.cpp_builder import CppBuilder  # noqa: E402


def test_a_cut_object_is_removed_once(tmp_path, monkeypatch):
    """The second time, and whatever else is wrong, the error is raised; other files stay."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    inside, outside = tmp_path / "cache" / "a.main.so", tmp_path / "b.main.so"
    inside.parent.mkdir(exist_ok=True)
    calls = []

    def load(path, why, times):
        calls.append(path)
        if len(calls) <= times:
            raise ImportError(f"{path}: {why}")

    inside.touch()
    with_whole_objects(lambda: load(inside, "file too short", 1))
    assert (len(calls), inside.exists()) == (2, False)
    for path, why in (
        (inside, "file too short"),
        (outside, "file too short"),
        (inside, "undefined symbol: x"),
    ):
        calls.clear()
        path.touch()
        with pytest.raises(ImportError, match=why):
            with_whole_objects(lambda path=path, why=why: load(path, why, 9))
        assert len(calls) == (2 if path == inside and why == "file too short" else 1)
    assert outside.exists()


@pytest.mark.slow
def test_a_group_whose_object_was_cut_off_is_compiled_again(tmp_path, monkeypatch):
    """As by a process that was killed while its compiler ran: no line, and the right results."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    build, cut = CppBuilder.build, []

    def killed(builder):
        path = Path(builder.get_target_file_path())
        if path.suffix == ".so" and path not in cut:
            cut.append(path)
            path.touch()
        else:
            build(builder)

    monkeypatch.setattr(CppBuilder, "build", killed)
    groups = Groups()
    group, _ = groups.make(chain_program(), [0, 1, 2], [3, 4])
    settings = {"cpp_cache_precompile_headers": False, "compile_threads": 1}
    with warnings.catch_warnings(), config.patch(settings):
        warnings.simplefilter("error", CompileWarning)
        groups.compile()
    assert cut
    assert not group.by_op
    a = torch.randn(4, 8)
    torch.testing.assert_close(group(a, a)[0], group.uncompiled(a, a)[0])
