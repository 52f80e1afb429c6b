"""The ring, the kernel's or the software ring: operations, completions, buffers, features."""
