"""Mode epidemic: datagrams along a tree, losses repaired by gossip (papers epidemic and polarized).

Read `broker` (the parts), `tree` (the way of an event), `numbering` and `losses` (how a loss is noticed), `gossip` with
`pulls` and `answers` (how it is repaired), `partners` (whom to ask), `blocks` and `network_coding` (large events).

docs/internals/epidemic.md explains the protocol and where it differs from the papers.
"""
