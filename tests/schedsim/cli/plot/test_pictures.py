"""Pictures: by the suffix of the file, and the same bytes each time."""

from __future__ import annotations

import matplotlib
import pytest
from four_stages import CHAIN
from matplotlib.figure import Figure

from schedsim.cli.app import run
from schedsim.cli.plot.pictures import check_suffix, write_picture
from schedsim.errors import SchedsimError
from schedsim.files.document import save


@pytest.fixture
def chain_file(tmp_path) -> str:
    file = tmp_path / "chain.json"
    save(CHAIN, file)
    return str(file)


@pytest.fixture
def call(capsys):
    """Run the command line: (exit code, stdout, stderr)."""

    def invoke(*arguments: str) -> tuple[int, str, str]:
        code = run(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return invoke


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
@pytest.mark.parametrize("kind", ["timeline", "schedule", "frontier"])
def test_plots_are_written(call, chain_file, tmp_path, kind, suffix):
    """Each picture in each format begins as that format does."""
    file = tmp_path / f"picture.{suffix}"
    budget = [] if kind == "frontier" else ["--mem", "60"]
    assert call("plot", kind, chain_file, *budget, "-o", str(file))[0] == 0
    magic = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    assert file.read_bytes().startswith(magic)


@pytest.mark.parametrize("name", ["x.gif", "x", "x.SVG", "x.svg.gz", ".svg"])
def test_other_suffixes_are_refused(name):
    """With those that can be drawn; others where the command has others."""
    with pytest.raises(SchedsimError, match="cannot draw") as caught:
        check_suffix(name)
    assert caught.value.hint == "use .svg, .png or .pdf"
    with pytest.raises(SchedsimError) as caught:
        check_suffix(name, (".svg", ".json"))
    assert caught.value.hint == "use .svg or .json"
    check_suffix("a.b/x.svg")


def test_neither_a_date_nor_the_users_settings_are_in_a_file(tmp_path, monkeypatch):
    """The salt of ids is ours for this file alone."""
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", "the user's")
    written = []
    for name in ("one.svg", "two.svg", "one.pdf", "two.pdf"):
        figure = Figure()
        figure.subplots().plot([1, 2], [3, 4])
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(len(written)))
        write_picture(figure, str(tmp_path / name))
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    assert written[2] == written[3]
    assert matplotlib.rcParams["svg.hashsalt"] == "the user's"
    assert b"<dc:date>" not in written[0]
    assert b"CreationDate" not in written[2]
