"""`format("tidings")`: archives as a source, brokers as a sink."""

from tidings.extras import need

need('format("tidings")', "spark", "pyspark")
