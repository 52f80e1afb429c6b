"""The ring: operations are submitted to it, and their completions dispatched."""
