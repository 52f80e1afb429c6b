"""The monitor's thread, its client and display for `uringloop.top`, and stall logging."""
