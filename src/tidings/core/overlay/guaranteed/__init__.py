"""Mode guaranteed: exactly once, in the order of each source, through failures of up to delta brokers in a row
(paper partitions). Read `broker` (the parts), `sessions`, `subscriptions` with its log, `delivery`, then
`parking` and `relays`."""
