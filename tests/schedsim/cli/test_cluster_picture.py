"""``schedsim plot cluster``."""

from schedsim.cli.app import run


def test_a_picture_is_written(tmp_path, capsys):
    """By its suffix; another suffix is refused."""
    line = ["plot", "cluster", "--preset", "llama3.2-1b", "--devices", "8", "--seq", "128"]
    assert run([*line, "-o", str(tmp_path / "a.svg")]) == 0
    assert (tmp_path / "a.svg").read_text().startswith("<?xml")
    assert run([*line, "-o", str(tmp_path / "a.txt")]) == 2
    assert "cannot draw" in capsys.readouterr().err
