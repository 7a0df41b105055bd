"""The report page: what it says, and that a browser shows it without the network."""

from __future__ import annotations

import html
import os
import re
import shutil
from pathlib import Path

import pytest

import schedsim
from schedsim import Chain, Schedule
from schedsim.cli.app import run
from schedsim.workloads import WorkloadOptions, build_workload

pytest.importorskip("bokeh", reason="the extra report is not installed")
from schedsim.figures.report import report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
TOOLTIP = """() => [...document.querySelectorAll('.bk-Tooltip')].map(
    tip => (tip.shadowRoot ?? tip).textContent).join()"""


def chain() -> Chain:
    return Chain.from_arrays(
        "four <1>", 4, forward_s=[1] * 4, backward_s=[2] * 4, output_bytes=[4] * 4,
        saved_bytes=[20] * 4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """A headless browser; skipped where there is none."""
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield started
        started.close()


def opened(browser, file: Path):
    """The page of `file` once drawn, and what it complained about or asked for."""
    page = browser.new_page(viewport={"width": 1250, "height": 1000})
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:")) else None,
    )
    page.goto(file.as_uri())
    page.wait_for_selector(".bk-Figure")
    page.wait_for_function("() => Bokeh.documents.length && Bokeh.documents[0].is_idle")
    return page, complaints


def hovered(page) -> str:
    """Text of the tooltip over the middle of the timeline."""
    box = page.locator(".bk-Figure").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 9, y)
    page.mouse.move(x, y, steps=3)
    page.wait_for_function(f"() => ({TOOLTIP})().includes('in use')")
    return page.evaluate(TOOLTIP)


def test_a_phone_scrolls_down_alone(browser, tmp_path):
    """The page is as wide as the screen; wide tables scroll within themselves."""
    plan = schedsim.plan(chain(), 60)
    file = tmp_path / "report.html"
    file.write_text(report(chain(), plan))
    page, _ = opened(browser, file)
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function("() => Bokeh.documents[0].is_idle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


def test_the_page_has_the_numbers_of_the_plan():
    """Escaped names, status, peak, planners, findings; and no address of another machine."""
    plan = schedsim.plan(chain(), 60)
    page = report(chain(), plan, ["a line about <it>"])
    text = html.unescape(re.sub(r"<script.*?</script>|<[^>]+>", " ", page, flags=re.S))
    assert "four <1>: 60 B" in text
    assert "a line about <it>" in text
    for fact in ("optimal", f"{plan.peak_bytes} B", "persistent schedules", "store_all"):
        assert fact in text
    for finding in schedsim.explain(chain(), plan.schedule).findings:
        assert finding.text in text
    own = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert not re.search(r'(?:src|href)="?(?:https?:)?//', own)


def test_from_the_command_line(tmp_path, capsys, monkeypatch):
    """A page from a plan; a word where there is none."""
    monkeypatch.chdir(tmp_path)
    assert (
        run(["plan", "--layers", "4", "--mem", "4GB", "--allow", "quantize", "-o", "p.json"]) == 0
    )
    assert run(["report", "--layers", "4", "p.json", "-o", "report.html"]) == 0
    assert "int4" in Path("report.html").read_text()
    assert run(["report", "--layers", "4", "-o", "other.html"]) == 2
    assert "no plan is given" in capsys.readouterr().err
    assert not Path("other.html").exists()


def test_a_browser_shows_it(browser, tmp_path):
    """Loads without a complaint or a request, tells what runs, and zooms both pictures."""
    file = tmp_path / "report.html"
    file.write_text(report(chain(), schedsim.plan(chain(), 60)))
    page, complaints = opened(browser, file)
    said = hovered(page)
    assert re.search(r"\d+: [FB]\d|loss", said)
    page.mouse.wheel(0, -400)
    page.wait_for_function("() => Bokeh.documents[0].roots()[0].x_range.start > 0")
    ranges = page.evaluate("() => Bokeh.documents[0].roots().map(f => f.x_range.start)")
    assert len(ranges) == 2
    assert ranges[0] == ranges[1]
    assert complaints == []
    page.close()


def test_a_step_of_ten_thousand_ops_stays_responsive(browser, tmp_path):
    """It is drawn, answers the pointer, and draws again after a zoom."""
    built = build_workload(WorkloadOptions(layers=385, granularity="op")).workload
    plan = schedsim.plan(built, schedsim.simulate(built, Schedule.store_all(built)).peak_bytes)
    assert built.num_ops > 10_000
    file = tmp_path / "report.html"
    file.write_text(report(built, plan))
    assert file.stat().st_size < 8e6
    page, complaints = opened(browser, file)
    page.set_default_timeout(10_000)
    assert "layer" in hovered(page)
    page.mouse.wheel(0, -400)
    page.wait_for_function("() => Bokeh.documents[0].roots()[0].x_range.start > 1000")
    page.wait_for_function("() => Bokeh.documents[0].is_idle")
    assert "layer" in hovered(page)
    assert complaints == []
    page.close()
