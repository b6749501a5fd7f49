"""Topics without brokers: processes that know who takes part in what, and broadcast to them (paper: collections).

Public name: `Participant`. Read `channel` and `channels` (messages between two processes, and whether they can talk),
`rows` and `membership` (who can talk to whom and who takes part in what, known to all), `holding` and `broadcast`.

docs/internals/peers.md explains the protocol. Users cannot reach it yet.
"""
