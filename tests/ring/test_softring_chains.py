"""The software ring's linked requests when one of them finds no memory."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest
from support.software_ring import compile_with_ring

PROGRAM = Path(__file__).with_name("linked_without_memory.c")

CANCELLED, EXISTS, NO_MEMORY = -errno.ECANCELED, -errno.EEXIST, -errno.ENOMEM

# A request needs memory for itself, and then for its path.
FIRST, FIRST_PATH, SECOND, SECOND_PATH, THIRD, THIRD_PATH, FOURTH, FOURTH_PATH, NONE = range(9)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("program") / "linked_without_memory"
    return compile_with_ring(PROGRAM, made, "malloc")


def results(program: Path, folder: Path, refused: int) -> dict[int, int]:
    command = [str(program), str(folder), str(refused)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 4
    return {int(name): int(result) for name, result in lines}


@pytest.mark.parametrize("refused", [FIRST, FIRST_PATH, SECOND, SECOND_PATH, THIRD, THIRD_PATH])
def test_a_chain_without_memory_for_one_request_is_not_started(
    program: Path, tmp_path: Path, refused: int
) -> None:
    failed = refused // 2 + 1
    expected = {name: NO_MEMORY if name == failed else CANCELLED for name in (1, 2, 3)}
    folder = tmp_path / "folder"
    # The fourth request is not linked to them.
    assert results(program, folder, refused) == {**expected, 4: EXISTS}
    assert not folder.exists()


@pytest.mark.parametrize("refused", [FOURTH, FOURTH_PATH])
def test_a_request_without_memory_does_not_disturb_the_chain_before_it(
    program: Path, tmp_path: Path, refused: int
) -> None:
    folder = tmp_path / "folder"
    assert results(program, folder, refused) == {1: 0, 2: 0, 3: EXISTS, 4: NO_MEMORY}
    assert (folder / "inner").is_dir()


def test_linked_requests_are_executed_in_order(program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    assert results(program, folder, NONE) == {1: 0, 2: 0, 3: EXISTS, 4: EXISTS}
    assert (folder / "inner").is_dir()
