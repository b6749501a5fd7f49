"""What drives the pure core: `virtual` time, one `local` process, `sockets`, `processes` of this machine, and
`adapters` to existing brokers. A driver decides nothing."""
