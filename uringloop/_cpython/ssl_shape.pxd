"""The parts of the standard library's TLS that the compiled way of the bytes stands in for."""
