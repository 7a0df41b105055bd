"""The site: it builds without a warning, every link leads somewhere, and nothing is left out."""

import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import schedsim

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for name in ("sphinx", "myst_nb", "furo"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    closed = "import socket; socket.socket.connect = None; "  # whoever asks a network fails
    code = f"{closed}import runpy, sys; sys.argv = ['build.py', {str(folder)!r}]; "
    code += f"runpy.run_path({str(DOCS / 'build.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Links(HTMLParser):
    """What a page links to and shows, and the places within it that can be linked to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.targets, self.anchors = [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        for name in ("href", "src"):
            if found.get(name) and tag in ("a", "img", "script", "link", "iframe", "object"):
                self.targets.append(found[name])


@pytest.mark.slow
def test_every_link_leads_somewhere(site):
    pages = {file: Links(file) for file in site.rglob("*.html")}
    assert len(pages) > 40
    broken = []
    for file, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "mailto", "data"):
                assert parts.netloc or parts.scheme in ("mailto", "data")
                continue
            path = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if path.is_dir():
                path /= "index.html"
            anchors = pages[path].anchors if path in pages else {parts.fragment}
            if not (path.exists() and unquote(parts.fragment) in {"", *anchors}):
                broken.append(f"{file.relative_to(site)}: {target}")
    assert broken == []


@pytest.mark.slow
def test_nothing_is_fetched_when_a_page_is_looked_at(site):
    for file in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img)[^>]+>", file.read_text())
        fetched = [tag for tag in tags if re.search(r'(?:src|href)="https?:', tag)]
        assert fetched == [], file


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site):
    text = (DOCS / "reference.md").read_text()
    built = Links(site / "docs" / "reference.html").anchors
    for name in schedsim.__all__:
        if name != "__version__":
            assert re.search(rf":: schedsim\.{name}$", text, re.MULTILINE), name
            assert any(anchor.split(".")[-1] == name for anchor in built), name


@pytest.mark.slow
def test_all_pages_of_docs_are_in_the_site(site):
    for page in [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file()


def test_links_of_pages_are_files_and_headings():
    """The same for the pages as they stand in the repository, without a generator."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            parts = urlsplit(target)
            if parts.scheme:
                continue
            file = (page.parent / parts.path).resolve() if parts.path else page
            assert file.exists(), f"{page.name}: {target}"
            if parts.fragment and file.suffix == ".md":
                heads = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
                assert parts.fragment in slugs, f"{page.name}: {target}"


def link(uri, status, info=""):
    """A row of Sphinx's checker."""
    return {"filename": "a.md", "lineno": 3, "uri": uri, "status": status, "info": info}


def test_links_to_other_sites_are_skipped_where_no_network_is():
    verdict = runpy.run_path(str(DOCS / "build.py"))["verdict"]
    no_route = "HTTPSConnectionPool(host='a.org', port=443): Max retries exceeded"
    rows = [link("b.md", "local"), link("https://a.org", "broken", no_route)]
    code, told = verdict(rows)
    assert code == 0
    assert told == ["skipped: no network here, none of 1 links to other sites answered"]
    missing = link("https://c.org/x", "broken", "404 Client Error: Not Found for url: x")
    assert verdict([*rows, missing])[0] == 1
    code, told = verdict([*rows, link("https://d.org", "working")])
    assert code == 1
    assert told == [f"a.md:3: https://a.org: {no_route}", "1 links to other sites work, 1 do not"]
    assert verdict([link("https://d.org", "working")])[0] == 0
    assert verdict([link("b.md", "local")])[0] == 0
