"""Commands on pages: `docs/page_commands.py` runs each, or leaves it out for a reason."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pages():
    """The script, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("page_commands", ROOT / "docs/page_commands.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_blocks_rows_and_continued_lines_are_commands(pages):
    text = """
```sh
# a word
schedsim a \\
    --b      # c
```

| command | answers |
|---|---|
| `schedsim row` | what? |

1. In a list:

   ```console
   $ schedsim plan
   peak
   $ schedsim wrong
   error: no
   hint: yes
   ```

```python
schedsim.plan(x)
```
"""
    found = [(one.text.split("#")[0].split(), one.fails) for one in pages.commands("p.md", text)]
    assert found == [
        (["schedsim", "a", "--b"], False),
        (["schedsim", "row"], False),
        (["schedsim", "plan"], False),
        (["schedsim", "wrong"], True),
    ]


def test_an_exit_code_is_what_the_page_lets_expect(pages):
    plain = pages.Command("p.md", 1, "schedsim plan")
    fails = pages.Command("p.md", 1, "schedsim plan", fails=True)
    asks = pages.Command("p.md", 1, "python benchmarks/rematlib/submit.py better.json")
    assert [plain.is_as_shown(code) for code in (0, 1, 2)] == [True, False, False]
    assert [fails.is_as_shown(code) for code in (0, 1, 2)] == [False, True, True]
    assert [asks.is_as_shown(code) for code in (0, 1, 2)] == [True, True, False]


def test_every_page_is_read_and_every_reason_is_needed(pages):
    """Nearly all commands are run; no reason is kept for a command that is gone."""
    every = [one for page in pages.PAGES for one in pages.commands(page, (ROOT / page).read_text())]
    run = [one for one in every if not one.reason]
    assert len(run) > 90
    assert len(run) > 0.8 * len(every)
    for pattern, reason in pages.NOT_RUN:
        assert any(re.search(pattern, one.text) for one in every), (pattern, reason)
    for page in pages.READY:
        assert page in {one.page for one in run}
    for command in pages.BEFORE:
        assert command in {one.text for one in run}


def test_what_pages_import_is_there(pages):
    """Every name of schedsim that a Python block imports."""
    found = set()
    for page in pages.PAGES:
        for line in (ROOT / page).read_text().splitlines():
            match = re.match(r"\s*from (schedsim\S*) import ([\w, ]+)", line)
            if match:
                found |= {(match[1], name.strip()) for name in match[2].split(",")}
    assert len(found) > 5
    for module, name in sorted(found):
        spec = importlib.util.find_spec(module)
        assert spec is not None, module
        assert spec.origin is not None
        assert re.search(rf"\b{name}\b", Path(spec.origin).read_text()), f"{module}: {name}"
