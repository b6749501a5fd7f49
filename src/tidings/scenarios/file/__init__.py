"""Reads a scenario file and plans its run.

Read `schema` (the keys), `decode` (TOML to structs), `check` and `check_nodes` (what takes several keys), then
`expand`, which spells out the plan from `topology`, `workload`, `links`, `faults`, `ordering` and `timeline`.
Both kinds of run draw from `arrivals` and `channels`. Entry points: `load_scenario`, `parse_scenario`, `expand`.
"""
