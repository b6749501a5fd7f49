"""Brokers, sequencers and clients over TCP, TLS and UDP.

`BrokerServer`, `SequencerHost` and `ClientConnection` are what others use. Read `session` and `outbox` (one connection,
whatever the transport), `stream` and `udp` (the transports), `turns` (nothing is sent before it is on disk),
`node_host` (what brokers and sequencers share), then `broker`, `sequencer`, `client` and `sequencing`.
"""
