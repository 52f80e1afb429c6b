"""Random programs whose events come in asyncio's order, on every loop: `nox -s order`."""
