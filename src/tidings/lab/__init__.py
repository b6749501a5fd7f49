"""Tests tidings with random scenarios: campaigns over seeds, and monitors that assert invariants during a run.

Read `seeds` (what campaigns share), `random_scenarios` and `campaign` with `invariants`, `quiet` and `newcomers`,
`epidemic_scenarios` and `epidemic_campaign` with `epidemic_monitor`, `order_scenarios` and `order_campaign`,
`share_scenarios` and `share_campaign` (durable subscriptions and groups), then `spark_campaign` (the guaranteed
campaign on Spark).
"""

from tidings.extras import need

need("tidings.lab", "lab", "numpy", "pyarrow", "scipy", "pyspark")
