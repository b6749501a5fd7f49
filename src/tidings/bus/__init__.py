"""The asyncio API: a bus to publish and subscribe with, its streams and receipts.

Applications get a bus from `connect` or `embedded`, a `Stream` from `subscribe` and a `Receipt` from `publish`.
Read `service` (the interface of every event service), `stream`, `host` (asyncio around the pure client of
core/client), `bus` (a host connected to a broker), `connect` (which service for which URL), `ordered_service` (order
over any service).
"""
