"""Statistics of a loop, and the list of open loops."""
