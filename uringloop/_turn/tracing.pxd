"""URINGLOOP_TRACE: the output of a trace."""
