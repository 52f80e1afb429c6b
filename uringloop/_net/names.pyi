"""Questions to the C library's resolver, asked in threads that need no GIL."""

import asyncio
from typing import Any, final

@final
class Names:
    def addresses(
        self,
        loop: asyncio.AbstractEventLoop,
        host: object,
        port: object,
        family: object,
        type: object,
        proto: object,
        flags: object,
    ) -> tuple[list[Any], float] | Query | None: ...
    def name(
        self, loop: asyncio.AbstractEventLoop, address: object, flags: object
    ) -> tuple[tuple[str, str], float] | Query | None: ...
    def close(self) -> None: ...

@final
class Query:
    def new_waiter(self) -> asyncio.Future[tuple[Any, float]]: ...
    def forget(self, waiter: asyncio.Future[tuple[Any, float]]) -> None: ...
    def __call__(self) -> None: ...
