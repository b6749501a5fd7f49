"""Runs a scenario over a grid of parameters and seeds: one simulation per Spark task.

`driver.run_sweep` is the entry. Read `grid` (with `paths`), `run` (with `isolation`), `records`, then `results`.
"""
