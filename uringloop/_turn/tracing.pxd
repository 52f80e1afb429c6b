"""Where URINGLOOP_TRACE is written to."""
