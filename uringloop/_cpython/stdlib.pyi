"""Parts of the standard library that compiled code replaces, and their switches."""

from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import final

_Shape = Mapping[str, set[str]]

STREAMS_SHAPE: _Shape
WEAK_SET_SHAPE: _Shape
IGNORED: set[str]
SWITCHES: dict[str, int]
START_TLS_MOVES_READ_AHEAD: bool
CANCEL_CLOSES_CLIENTS: bool
PROTOCOL_KEEPS_WRITER: bool
SERVERS_REPORT_CALLBACKS: bool
SENDFILE_ALWAYS_MOVES: bool

ALL_TASKS: object

class IdleTransport:
    def __init__(self) -> None: ...

@final
class Original:
    def __init__(self, owner: ModuleType | type, name: str, uses: str | None = None) -> None: ...
    def is_in_place(self) -> bool: ...

WRITELINES_SKIPS_FALSE: bool
WRITELINES_JOINS: bool
WRITE_TAKES_BYTES_LIKE: bool
RUN_EXPECTS_COROUTINE: bool
BIND_SAYS_ERRNO: bool
SERVERS_SKIP_ADDRESSES: bool
DATAGRAMS_OF_ANY_TYPE: bool
WAIT_CLOSED_IGNORES_CLIENTS: bool
CLOSE_REMOVES_FILE: bool
HANDLER_HAS_CONTEXT: bool
FORK_KEEPS_SIGNALS: bool
EMPTY_DATAGRAMS_ARE_SENT: bool

def find(target: ModuleType | type, path: str) -> object: ...
def code_of(target: ModuleType | type, path: str) -> CodeType | None: ...
def has_shape(target: ModuleType | type, shape: _Shape) -> bool: ...
def variable(name: str) -> str: ...
def disable(names: frozenset[str]) -> None: ...
def report() -> dict[str, str]: ...
