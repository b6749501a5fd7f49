"""Mode guaranteed: exactly once, in the order of each source, through failures of up to delta brokers in a row
(paper partitions). Read `broker` (the parts), `sessions`, `subscriptions` with its log, `delivery`, then
`parking` and `relays`.

docs/internals/guaranteed.md explains the protocol and where it differs from the paper.
"""
