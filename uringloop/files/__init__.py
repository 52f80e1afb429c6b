"""Files, directories and paths."""
