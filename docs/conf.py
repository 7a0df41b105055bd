"""How the site is made: Sphinx over the Markdown of the whole repository.

The source folder is the repository itself, so that pages link to the README, the papers and results
as they do in a checkout, and every such link is checked.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "schedsim"
author = "the schedsim authors"
copyright = f"{author}, MIT licence"
root_doc = "docs/index"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
include_patterns = [
    "docs/**.md",
    "docs/notebooks/*.ipynb",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "papers/**.md",
    "validation/*.md",
    "validation/results/*.md",
    "benchmarks/results/*.md",
    "benchmarks/rematlib/*.md",
]
exclude_patterns = ["site", ".*", "**/.*", "build", "dist"]

html_theme = "furo"
html_title = "schedsim"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
templates_path: list[str] = []

nb_execution_mode = "off"  # docs/notebooks.py has run them, and a test runs them again
nb_mime_priority_overrides = [("html", "text/html", 0)]
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "colon_fence"]
suppress_warnings = ["myst.header"]  # a page that begins with a smaller heading
highlight_language = "none"

default_role = "code"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autoclass_content = "class"
if importlib.util.find_spec("torch") is None:
    autodoc_mock_imports = ["torch"]
