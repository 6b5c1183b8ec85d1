"""How Sphinx builds these pages: `python -m sphinx -W --keep-going -b html docs docs/_build`."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # Sphinx runs this file from any folder

from generated_parts import fill_in

project = "lightning_shards"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "lightning_shards"
myst_heading_anchors = 3
default_role = "literal"  # docstrings quote code by single backticks
autodoc_inherit_docstrings = False  # Lightning's hooks are told in Lightning's own pages
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # else a dataclass field is described twice


def setup(app: Any) -> None:
    """Put the parts that are made from the code into the pages before they are parsed."""
    app.connect("source-read", _fill_in)


def _fill_in(_app: Any, _page: str, source: list[str]) -> None:
    source[0] = fill_in(source[0])
