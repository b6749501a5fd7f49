"""What proves tidings: random scenarios, campaigns over seeds, invariants that watch a run."""

from tidings.extras import need

need("tidings.lab", "lab", "numpy", "pyarrow", "scipy", "pyspark")
