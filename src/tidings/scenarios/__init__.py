"""Runs scenarios: a network, its clients and its faults, described in one TOML file.

Read `file` (schema, checks, plan of a run), then `actor` (a subscriber, the same in both kinds of run), then
`simulate` with `virtual` (virtual time) or `live` (processes and wall time). `trace` holds the tables that a run
writes, and the checkers that read them.
"""
