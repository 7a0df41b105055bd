"""Numbers of the page on the library."""

from rematlib import FOLDER, script

check, describe = script("check"), script("describe")


def test_the_page_says_what_the_index_says():
    page = describe.PAGE.read_text()
    assert describe.filled(page, check.read(FOLDER / "index.json")) == page
    assert "instances, " in page
