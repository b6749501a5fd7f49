"""Brokers, sequencers and clients over TCP, TLS and UDP: `node_host`, `session` with `outbox`, `broker`, `sequencer`,
`client`. `turns` keeps the law that nothing leaves before it is on disk."""
