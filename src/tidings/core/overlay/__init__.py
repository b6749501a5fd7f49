"""The network of brokers in its three modes: `best_effort`, `guaranteed` (paper partitions) and `epidemic` (papers
epidemic and polarized). The modules here are what modes share. `make_broker` (`brokers`) makes a broker of any mode.

Read `matching` and `routing` (who wants an event), `links` and `forwarding` (how interests travel), `edge` (clients),
and `labels` (places in the tree). docs/internals/messages.md explains how interests travel.
"""
