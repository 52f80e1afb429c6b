"""Models of what threads share, for a checker of memory orders."""
