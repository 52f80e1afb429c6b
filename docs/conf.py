"""The site: Sphinx reads the pages beside this file, and docstrings of the installed package.

The pages are read as files of the repository too. So links are written for that; what they name
outside of `docs` becomes a page of the site where there is one, and else a file to be downloaded.
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

# Classes of images, by which the theme shows one for light and one for dark.
myst_enable_extensions = ["attrs_inline"]
# The anchors that Git hosts give to headings.
myst_heading_anchors = 3

# One argument on a line where they are more than fit.
maximum_signature_line_length = 80
# Names in docstrings stand between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# `-1` and `os.SEEK_SET` as they are written, not as they are printed.
autodoc_preserve_defaults = True

# Files of the root that are pages here, by what includes them.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
# A link from a page to a file of the root or below it, and one from such a file to a page.
OUTWARDS = re.compile(r"(?<=\]\()\.\./([^)#\s]+\.md)")
INWARDS = re.compile(r"(?<=\]\()docs/(?=[^)]+)")


def link_outwards(_app: object, page: str, source: list[str]) -> None:
    """Have links to files of the root lead to their pages, and to other Markdown as it is."""
    if "/" in page:
        # A folder below: what its links call `..` is this one.
        return
    source[0] = OUTWARDS.sub(lambda link: PAGES.get(link[1], f"path:../{link[1]}"), source[0])


PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\s*</picture>'
)
IMAGES = "![{alt}]({light}){{.only-light}}\n![{alt}]({dark}){{.only-dark}}"


def show_pictures(_app: object, _page: str, source: list[str]) -> None:
    """Have pictures for light and for dark pages follow the theme, and be copied to the site."""
    source[0] = PICTURE.sub(lambda found: IMAGES.format(**found.groupdict()), source[0])


def link_inwards(_app: object, _path: object, _page: str, source: list[str]) -> None:
    """Have links of included files lead to pages: those files are not in this folder."""
    source[0] = INWARDS.sub("", source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", link_outwards)
    app.connect("source-read", show_pictures)
    app.connect("include-read", link_inwards)
