"""Settings of Sphinx. Pages are MyST Markdown, and `generate.py` writes the reference pages before each build."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))

import generate  # noqa: E402

import iclbench  # noqa: E402

project = "iclbench"
version = release = iclbench.__version__
copyright = "the iclbench authors"
html_title = f"iclbench {version}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "templates"]
# In docstrings of this project, words in single backticks are code.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
napoleon_use_rtype = False
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}

(HERE / "reference").mkdir(exist_ok=True)
for name, text in generate.pages().items():
    path = HERE / "reference" / f"{name}.md"
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
