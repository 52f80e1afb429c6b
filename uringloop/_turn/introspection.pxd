"""What other programs read from the private attributes of asyncio's own loops."""
