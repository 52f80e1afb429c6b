"""The stubs: a program that type checkers accept runs, and docstrings equal the compiled ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from support.roles import PATIENCE

import uringloop
from uringloop._turn.turn import LoopCore

SUPPORT = Path(__file__).parents[1] / "support"
PACKAGE = Path(uringloop.__file__).parent


def test_the_type_checked_program_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", SUPPORT / "user_program.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "16\n", "")


def test_the_stub_of_the_loop_has_the_compiled_docstrings() -> None:
    stub = ast.parse((PACKAGE / "_turn" / "turn.pyi").read_text())
    (core,) = (
        node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "LoopCore"
    )
    in_stub = {
        method.name: ast.get_docstring(method)
        for method in core.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
    }
    compiled = {name: getattr(LoopCore, name).__doc__ for name in in_stub}
    assert in_stub == compiled
    assert any(in_stub.values())
