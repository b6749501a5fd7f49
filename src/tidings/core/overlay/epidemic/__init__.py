"""Mode epidemic: datagrams along a tree, with gossip to repair losses (papers epidemic and polarized).

Public names: `EpidemicBroker` and `RecoverySettings`. Read `broker` (the parts), `tree` (the path of an event),
`numbering` and `losses` (how a loss is noticed), `gossip` with `pulls` and `answers` (how it is repaired), `partners`
(whom to ask), `blocks` and `network_coding` (large events).

docs/internals/epidemic.md explains the protocol and where it differs from the papers.
"""
