"""Runs the checkers over traces and archives of any size, in this process or on Spark.

`run.audit` is the entry. Read `stages` (the machinery), `auditing` (a trace, step by step) and its `tasks` and `order`,
then `archive`; `report`, `plots` and `remarks` present the result.
"""
