"""CPython: its C API, what is relied on inside it, and loading of the compiled modules."""
