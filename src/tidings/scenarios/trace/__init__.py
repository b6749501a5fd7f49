"""Writes, reads and checks the trace of a run: six Parquet tables.

Read `tables` (schemas), `writer` and `reader`, then `coded` (a trace as arrays), `interests` and `demand` (what each
subscription selects and is owed), `checkers` (which guarantees a trace keeps) and `metrics`.
"""

from tidings.extras import need

need("a trace", "sim", "numpy", "pyarrow")
