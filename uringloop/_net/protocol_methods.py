"""Methods of protocols that asyncio does not know: a protocol that has one is served by it."""

from __future__ import annotations

import functools
import inspect
import sys

if sys.version_info >= (3, 14):
    import annotationlib

    # Annotations may name what is imported for type checkers only.
    signature = functools.partial(
        inspect.signature, annotation_format=annotationlib.Format.FORWARDREF
    )
else:
    signature = inspect.signature


def has_method(protocol: object, name: str, count: int) -> bool:
    """Return whether the class of *protocol* has a method *name* for *count* arguments.

    A method for other arguments is one of the program's own. A mock object has every attribute, but
    its class has not.
    """
    if not callable(getattr(type(protocol), name, None)):
        return False
    try:
        found = signature(getattr(protocol, name))
    except Exception:
        # A compiled method without a signature, or one that cannot be read.
        return True
    try:
        found.bind(*range(count))
    except TypeError:
        return False
    return True
