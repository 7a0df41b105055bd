"""``schedsim plot cluster``."""

from schedsim.cli.app import run


def test_a_picture_is_written(tmp_path, capsys):
    """By its suffix; another suffix is refused."""
    line = ["plot", "cluster", "--preset", "llama3.2-1b", "--devices", "8", "--seq", "128"]
    assert run([*line, "-o", str(tmp_path / "a.svg")]) == 0
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert run([*line, "-o", str(tmp_path / "a.txt")]) == 2
    assert "cannot draw" in capsys.readouterr().err


def test_a_step_that_fits_is_drawn(tmp_path, capsys):
    """A budget is for ``--recompute fit`` alone; what does not fit is said."""
    line = ["plot", "cluster", "--preset", "llama3.2-1b", "--devices", "8", "--seq", "128"]
    line += ["-o", str(tmp_path / "a.svg")]
    assert run([*line, "--recompute", "fit", "--mem", "30GB"]) == 0
    assert run([*line, "--recompute", "fit"]) == 0
    capsys.readouterr()
    assert run([*line, "--recompute", "fit", "--mem", "1GB"]) == 1
    assert "over --mem" in capsys.readouterr().err
    assert run([*line, "--mem", "30GB"]) == 2
    assert "--mem changes nothing" in capsys.readouterr().err
