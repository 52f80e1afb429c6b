"""CPython: its C API, and how the package's compiled modules are loaded."""
