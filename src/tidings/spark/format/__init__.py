"""`format("tidings")`: archives as a source, brokers as a sink.

Read `options`, `offsets`, `ranges` and `columns`, then `source` and `stream_reader`; for the sink read `sink_rows` and
`sink_publishing`, then `sink`.
"""

from tidings.extras import need

need('format("tidings")', "spark", "pyspark")
