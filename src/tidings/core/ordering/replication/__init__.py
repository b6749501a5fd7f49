"""Keeps a server alive across crashes: on disk, and on a standby that takes over.

Read `replica` (roles), `journal` (disk), `standby_link` and `transfer` (batches and state to the standby), `witness`
(which of two replicas is active), `output_gate` (when outputs may leave), `node` (all replicas of a node).
"""
