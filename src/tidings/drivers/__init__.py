"""The drivers of the pure core; a driver decides nothing, and no driver imports another.

`virtual` runs nodes in virtual time (the simulator), `local` in one process, `sockets` over TCP, TLS and UDP.
`processes` starts brokers and sequencers on this machine; `adapters` make services of NATS, MQTT and Redis.
Read `port` (what a live node gets from its driver) and `address` first.
"""
