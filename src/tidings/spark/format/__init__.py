"""`format("tidings")`: archives and durable subscriptions as a source, brokers as a sink.

Read `options`, `offsets`, `ranges` and `columns`, then `source` and `stream_reader`; for durable subscriptions
`durable` and `durable_stream_reader`; for the sink `sink_rows`, `sink_publishing` and `sink_name`, then `sink`.
"""

from tidings.extras import need

need('format("tidings")', "spark", "pyspark")
