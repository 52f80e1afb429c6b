"""Configuration of the site: Sphinx reads the pages in this folder and the installed docstrings.

The pages are also read as files of the repository, so their links are written for that.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import uringloop

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "uringloop"
version = release = uringloop.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_reredirects",
]
html_theme = "furo"
html_title = f"{project} {release}"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["tables.css"]

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

# Names of Python in signatures lead to its documents; where the site is built for readers, and so
# the network is there.
if os.environ.get("READTHEDOCS"):
    intersphinx_mapping = {"python": ("https://docs.python.org/3", None)}

# The button copies commands without prompts and output.
copybutton_prompt_text = "$ "

# Pages that have moved, and their places.
redirects = {
    "install": "start/install.html",
    "guide": "start/tutorial.html",
    "faq": "start/faq.html",
    "integrations": "how-to/servers.html",
    "recipes": "how-to/containers.html",
    "takeover": "how-to/programs-that-name-uvloop.html",
    "packaging": "how-to/packaging.html",
    "files": "how-to/files.html",
    "sockets": "how-to/sockets.html",
    "monitoring": "how-to/observe.html",
    "operations": "about/rings.html",
    "testing": "how-to/test-a-library.html",
    "options": "reference/configuration.html",
    "migration": "reference/differences.html",
    "threads": "reference/threads.html",
    "parity": "reference/parity.html",
    "api": "reference/api.html",
    "security": "about/security.html",
    "platforms": "evidence/platforms.html",
    "benchmarks": "evidence/benchmarks.html",
    "reliability": "evidence/faults.html",
    "architecture": "project/architecture.html",
    "kernel-rules": "project/kernel-rules.html",
    "contributing": "project/contributing.html",
    "changelog": "project/changelog.html",
}

# Files of the root, and the pages that include them.
PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "about/security.md",
}
FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)(?=[)#])")


def links_from(text: str, folder: Path, page: str) -> str:
    """Return a text, whose links begin in *folder*, for *page* of the site.

    A link to a file outside of the pages becomes a link to the page that includes it, or else
    a download.
    """

    def link(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / found[1]))
        if ROOT in target.parents and target.suffix == ".md":
            name = str(target.relative_to(ROOT))
            if name in PAGES:
                target = FOLDER / PAGES[name]
            elif FOLDER not in target.parents:
                return f"path:{os.path.relpath(target, (FOLDER / page).parent)}"
        return os.path.relpath(target, (FOLDER / page).parent)

    return LINK.sub(link, text)


def link_outwards(_app: object, page: str, source: list[str]) -> None:
    """Make links to files of the root lead to their pages, or to the Markdown file itself."""
    source[0] = links_from(source[0], (FOLDER / page).parent, page)


PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]+)" src="(?P<light>[^"]+)">\s*</picture>'
)
IMAGES = "![{alt}]({light}){{.only-light}}\n![{alt}]({dark}){{.only-dark}}"


def show_pictures(_app: object, _page: str, source: list[str]) -> None:
    """Make pictures follow the theme's light or dark mode, and copy them to the site."""
    source[0] = PICTURE.sub(lambda found: IMAGES.format(**found.groupdict()), source[0])


def link_inwards(_app: object, path: Path, _page: object, source: list[str]) -> None:
    """Make links of included files, which are outside of this folder, lead to pages."""
    source[0] = links_from(source[0], ROOT, PAGES[path.name])


def setup(app: Sphinx) -> None:
    app.connect("source-read", link_outwards)
    app.connect("source-read", show_pictures)
    app.connect("include-read", link_inwards)
