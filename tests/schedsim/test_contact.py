"""First contact in Python: names, versions, what is taken, and what is refused with a remedy."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import schedsim
from schedsim.errors import SchedsimError, UnsupportedError

ROOT = Path(__file__).parents[2]
CHAIN = schedsim.Chain.from_arrays(
    "two", 4, forward_s=[1, 1], backward_s=[2, 2], output_bytes=[4, 4], saved_bytes=[10, 10]
)


def test_dir_shows_exactly_the_public_names():
    """No submodules, no helpers; each of them is there, those of torch where torch is."""
    assert dir(schedsim) == sorted(schedsim.__all__)
    need_torch = {"apply", "rematerialize", "watch", "ways"}
    for name in set(schedsim.__all__) - need_torch:
        assert getattr(schedsim, name) is not None


def test_the_version_is_that_of_the_project():
    """As in pyproject.toml, and as installed where it is."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert schedsim.__version__ == project["version"]
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()
    with contextlib.suppress(PackageNotFoundError):
        assert schedsim.__version__ == version("schedsim")


def test_a_path_is_a_workload(tmp_path):
    """A text or a Path; a plan is none, nor a file that is not there."""
    file = tmp_path / "chain.json"
    schedsim.save(CHAIN, file)
    for given in (file, str(file)):
        assert schedsim.plan(given, 26).makespan_s == schedsim.plan(CHAIN, 26).makespan_s
    assert [row.status for row in schedsim.compare(file, 26, ["rotor"])] == ["optimal"]
    schedsim.save(schedsim.plan(CHAIN, 26), tmp_path / "plan.json")
    with pytest.raises(SchedsimError, match=r"plan\.json is a plan, not a workload"):
        schedsim.plan(tmp_path / "plan.json", 26)
    with pytest.raises(FileNotFoundError):
        schedsim.plan(tmp_path / "none.json", 26)
    with pytest.raises(SchedsimError, match="gpt2 is a preset"):
        schedsim.plan("gpt2", 26)
    with pytest.raises(UnsupportedError, match="model:gpt2 is a torch model"):
        schedsim.plan("model:gpt2", 26)


def test_a_torch_model_is_sent_to_rematerialize():
    """The model itself, not the class of the error, says what to call."""
    torch = pytest.importorskip("torch")
    with pytest.raises(UnsupportedError, match="a Linear is a torch model") as caught:
        schedsim.plan(torch.nn.Linear(2, 2), "60%")
    assert "schedsim.rematerialize" in caught.value.hint
    with pytest.raises(UnsupportedError, match="a Linear is a torch model"):
        schedsim.pareto(torch.nn.Linear(2, 2))


def test_unknown_options_name_the_planners_own():
    """The nearest first, then all of them."""
    with pytest.raises(SchedsimError, match="planner 'rotor' does not take slots") as caught:
        schedsim.plan(CHAIN, 26, "rotor", slots=3)
    taken = "it takes allow, effort, gap, num_slots"
    assert caught.value.hint.startswith(f"did you mean num_slots? {taken}")
    with pytest.raises(SchedsimError, match="does not take gap") as caught:
        schedsim.plan(CHAIN, 26, "recompute_all", gap=0.1)
    assert caught.value.hint == "it takes no options"
    with pytest.raises(SchedsimError, match="unknown planner 'roter'") as caught:
        schedsim.plan(CHAIN, 26, "roter")
    assert caught.value.hint == "did you mean 'rotor'?"


def test_nothing_heavy_is_loaded_at_first_contact():
    """Neither torch nor pyplot nor solvers, for the names and the version."""
    code = (
        "import sys, schedsim; schedsim.__version__; dir(schedsim); "
        "heavy = ['torch', 'matplotlib', 'scipy.optimize', 'numba', 'rich']; "
        "print(*[name for name in heavy if name in sys.modules], end='')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
