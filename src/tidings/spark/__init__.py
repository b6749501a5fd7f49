"""What runs on Spark. Nothing else of tidings imports pyspark."""

from tidings.extras import need

need("tidings.spark", "spark", "numpy", "pyarrow")
