"""The network of brokers in its modes: `best_effort`, `guaranteed` (paper partitions), `epidemic` (papers epidemic
and polarized). What modes share is here: interests are forwarded (`forwarding`), matched (`matching`) and
routed (`routing`).

docs/internals/messages.md explains how interests travel.
"""
