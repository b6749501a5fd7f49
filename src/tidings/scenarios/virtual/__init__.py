"""Holds the nodes of a simulated scenario; `scenarios/simulate.py` runs them.

Read `client_node` (the node of a client), `clients` (publishers and subscribers on it) and `make_clients`, then
`sequencers`, `faults` and `tally` (the counts of the summary).
"""
