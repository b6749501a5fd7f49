"""Mode guaranteed: exactly-once delivery in the order of each source, with up to delta failed brokers in a row
(paper partitions). `GuaranteedBroker` (`broker`) composes the parts.

Read `broker`, `sessions`, `subscriptions` with its `subscription_log`, `delivery`, then `parking` and `relays`.
docs/internals/guaranteed.md explains the protocol and where it differs from the paper.
"""
