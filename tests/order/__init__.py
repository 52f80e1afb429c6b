"""Random programs whose events come in asyncio's order, on every loop: make order SEEDS=2000"""
