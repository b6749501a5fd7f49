"""Runs a scenario in wall time, with real processes.

Read `run` (conducts the run), `processes` and `sequencers` (start, kill, pause and cut processes), `facts` (what the
conductor and client processes tell each other), `process`, `link` and `client` (a client process), then `ledger`
(writes the trace). `observer` is for code that watches a run. Entry point: `run_live`.
"""
