"""Functions of the standard library that compiled code stands for, while nobody changes them."""

from types import ModuleType

class Original:
    def __init__(self, owner: ModuleType | type, name: str) -> None: ...
    def is_in_place(self) -> bool: ...
