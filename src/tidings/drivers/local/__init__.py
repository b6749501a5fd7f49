"""A whole network in one process, on its asyncio loop."""
