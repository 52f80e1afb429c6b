"""Values for the private attributes of asyncio's loops that other programs read."""
