"""A whole network in one process, on one asyncio loop.

`LocalNetwork` has the brokers and clients, `LocalOrdering` the sequencers. Read `driver` (the queue of messages) first.
"""
