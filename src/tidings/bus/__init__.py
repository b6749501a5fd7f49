"""What applications hold: a bus to publish and subscribe with, streams, receipts.

Read `service` (the interface of every event service), `stream`, `bus` (at a broker), `host` (asyncio around the pure
client of core/client), `connect` (which service for which URL), `ordered_service` (an order over any service).
"""
