"""Reads reports of the thread sanitizer: nox -s tsan_threads

    python tests/threads/reports.py build/tsan

Prints each race once. Exits with 1 if the package is where one of its two accesses was made, or has
called what made it; other races are CPython's. Exits with 1, too, if a process was ended by a
signal or by an error of the sanitizer itself: such a process seems to succeed (exitcode=0).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# Below so many frames of an access, the package has only called what has called something.
FRAMES = 4
OURS = re.compile(r"uringloop/_|uringloop/bench/")
ACCESS = re.compile(r"^  (?:Previous )?(?:[Aa]tomic )?(?:[Rr]ead|[Ww]rite) of size", re.MULTILINE)
# "    #0 function file:line:column (library+0x123) (BuildId: ...)"
FRAME = re.compile(r"^    #\d+ (\S+) (\S+)", re.MULTILINE)
END = re.compile(
    r"^.*(?:ThreadSanitizer: CHECK failed|(?:ERROR|FATAL): ThreadSanitizer)", re.MULTILINE
)


def reports(text: str) -> Iterator[str]:
    for report in text.split("=================="):
        if "WARNING: ThreadSanitizer" in report:
            yield report


def accesses(report: str) -> list[list[str]]:
    """Return the first frames of both accesses, or of every stack of another kind of report."""
    parts = report.split("\n\n")
    chosen = [part for part in parts if ACCESS.search(part)] or parts
    return [[f"{name} {place}" for name, place in FRAME.findall(part)[:FRAMES]] for part in chosen]


def main() -> None:
    texts = [file.read_text() for file in sorted(Path(sys.argv[1]).iterdir())]
    seen = Counter(
        "\n".join("  " + "\n    ".join(frames) for frames in accesses(report))
        for text in texts
        for report in reports(text)
    )
    ours = [race for race in seen if OURS.search(race)]
    for race, times in seen.most_common():
        print(f"{'uringloop' if race in ours else 'CPython'}, {times} times:\n{race}\n")
    ends = [text[found.start() :] for text in texts if (found := END.search(text))]
    for end in ends:
        print(f"A process was ended:\n{end}")
    print(f"{len(seen)} races, {len(ours)} of them in uringloop; ended processes: {len(ends)}")
    sys.exit(1 if ours or ends else 0)


if __name__ == "__main__":
    main()
