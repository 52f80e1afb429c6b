"""What all transports have in common: pausing, flow control, writing, the end."""
