"""Calibrations: fitted to a profile, kept in a file, and refused where the file is none."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from costed_steps import two_layers  # noqa: E402
from schedsim.validation.costs import fit_calibration, measured_costs, roofline_costs  # noqa: E402
from schedsim.validation.costs.calibration import Calibration, load_calibration  # noqa: E402
from schedsim.validation.costs.table import Costs  # noqa: E402
from schedsim.validation.costs.work import Work  # noqa: E402

from schedsim.errors import SchedsimError  # noqa: E402
from schedsim.workloads.devices import get_device  # noqa: E402


def test_calibration_makes_the_roofline_add_up(tmp_path):
    """Fitted to a profile, the roofline of the same graph takes the profile's time in all."""
    captured = two_layers()
    # Made up of ops at about a fortieth of the peaks: measured times are those of a busy machine.
    ideal = roofline_costs(captured, "cpu").time_s
    times = {name: time_s * (36 + 8 * (k % 2)) for k, (name, time_s) in enumerate(ideal.items())}
    profile = replace(measured_costs(captured, "cpu", target_s=0.0), time_s=times)
    fitted = fit_calibration(captured, profile, "cpu")
    fitted.save(tmp_path / "cpu.json")
    costs = roofline_costs(captured, "cpu", tmp_path / "cpu.json")
    assert sum(costs.time_s.values()) == pytest.approx(sum(times.values()), rel=0.05)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "cannot be read"),
        ('{"schema": "other"}', "no calibration"),
        ('{"schema": "schedsim.calibration/1", "efficiency": {"matmul": 0}}', "efficiency.matmul"),
        ('{"schema": "schedsim.calibration/1", "launch_s": -1}', "launch_s"),
    ],
)
def test_bad_calibration_files(tmp_path, document, message):
    file = tmp_path / "calibration.json"
    file.write_text(document)
    with pytest.raises(SchedsimError, match=message):
        roofline_costs(two_layers(), "cpu", file)


def test_a_time_is_the_roofline_over_the_share_that_is_reached():
    """By arithmetic or by memory, whichever takes longer; never below the start of a kernel."""
    device = get_device("a100-80gb")
    half = Calibration({"matmul": 0.5, "memory": 0.25}, launch_s=1e-6)
    much = Work(10**12, 8, "matmul", "fp32")
    assert half.time_s(much, device) == pytest.approx(2 * 10**12 / device.flops_per_s["fp32"])
    wide = Work(1, 10**10, "matmul", "fp32")
    assert half.time_s(wide, device) == pytest.approx(2 * 10**10 / device.bytes_per_s)
    moved = Work(10**15, 10**9, "memory", "fp32")  # its arithmetic does not count
    assert half.time_s(moved, device) == pytest.approx(4 * 10**9 / device.bytes_per_s)
    assert half.time_s(Work(0, 0, "attention", "fp32"), device) == 1e-6


def test_the_fit_gives_back_shares_that_were_put_in():
    """Times of half the roofline's speed for products, and a third for what moves memory."""
    captured, device = two_layers(), get_device("cpu")
    shares = {"matmul": 0.5, "memory": 1 / 3}
    ideal = roofline_costs(captured, "cpu").time_s
    exact = Calibration(shares)
    names = [name for name, time_s in ideal.items() if time_s > 0]
    assert names
    calls = {call.name: call for call in captured.program.calls}
    from schedsim.validation.costs.work import work_of

    times = {name: exact.time_s(work_of(captured.program, calls[name]), device) for name in names}
    fitted = fit_calibration(captured, Costs({**times, "start": 1e-15}, {}, "made"), "cpu")
    assert fitted.efficiency == pytest.approx(shares)
    assert fitted.source.startswith("made, ")


def test_a_file_holds_all_of_it(tmp_path):
    """And is read again as it was."""
    one = Calibration({"memory": 0.7}, 3e-6, "a machine")
    one.save(tmp_path / "one.json")
    assert load_calibration(tmp_path / "one.json") == one
    document = json.loads((tmp_path / "one.json").read_text())
    for wrong in (math.nan, -1, "much", True):
        document["efficiency"] = {"memory": wrong}
        (tmp_path / "bad.json").write_text(json.dumps(document))
        with pytest.raises(SchedsimError, match=r"bad.json: efficiency.memory: .* share above 0"):
            load_calibration(tmp_path / "bad.json")
