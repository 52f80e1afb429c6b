"""What tests of several packages share, each module used by its name."""
