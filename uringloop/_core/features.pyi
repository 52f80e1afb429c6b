"""What the kernel has of what this loop can use, and what of it shall not be used."""

LIBURING: str
FEATURES: dict[str, int]

def disable(names: frozenset[str]) -> None: ...
def report(kernel: bool) -> dict[str, str]: ...
