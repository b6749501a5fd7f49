"""Scenario files and their runs: `file` (the schema and its checks), `simulate` (virtual time), `live`
(processes), with the same `actor` in both; `trace` (the tables that a run leaves) with its checkers."""
