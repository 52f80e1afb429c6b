"""Configuration of the site: Sphinx reads the pages in this folder and the installed docstrings.

The pages are also read as files of the repository, so their links are written for that. A link to a
file outside of `docs` becomes a link to the page that includes the file, or else a download.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import uringloop

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "uringloop"
version = release = uringloop.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"{project} {release}"
html_show_copyright = False

# Classes of images: the theme shows one in light mode and one in dark mode.
myst_enable_extensions = ["attrs_inline"]
# The anchors that Git hosts give to headings.
myst_heading_anchors = 3

# Longer signatures have one argument per line.
maximum_signature_line_length = 80
# Names in docstrings stand between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# Defaults as they are written, such as `os.SEEK_SET`, not as they are printed.
autodoc_preserve_defaults = True

# Files of the root, and the pages that include them.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
# A link from a page to a file of the root or below it, and one from such a file to a page.
OUTWARDS = re.compile(r"(?<=\]\()\.\./([^)#\s]+\.md)")
INWARDS = re.compile(r"(?<=\]\()docs/(?=[^)]+)")


def link_outwards(_app: object, page: str, source: list[str]) -> None:
    """Make links to files of the root lead to their pages, or to the Markdown file itself."""
    if "/" in page:
        # In a folder below, `..` is the folder of this file.
        return
    source[0] = OUTWARDS.sub(lambda link: PAGES.get(link[1], f"path:../{link[1]}"), source[0])


PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\s*</picture>'
)
IMAGES = "![{alt}]({light}){{.only-light}}\n![{alt}]({dark}){{.only-dark}}"


def show_pictures(_app: object, _page: str, source: list[str]) -> None:
    """Make pictures follow the theme's light or dark mode, and copy them to the site."""
    source[0] = PICTURE.sub(lambda found: IMAGES.format(**found.groupdict()), source[0])


def link_inwards(_app: object, _path: object, _page: str, source: list[str]) -> None:
    """Make links of included files, which are outside of this folder, lead to pages."""
    source[0] = INWARDS.sub("", source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", link_outwards)
    app.connect("source-read", show_pictures)
    app.connect("include-read", link_inwards)
