"""The reports of debug mode on stderr."""

from __future__ import annotations

import re


def without_slow_calls(text: str) -> str:
    """Return *text* without the reports of slow calls, which a busy machine causes."""
    return re.sub(r"^Executing <.*> took \d+\.\d+ seconds\n", "", text, flags=re.MULTILINE)
