"""The six trace tables: `tables`, `writer`, `reader`; `checkers` says which guarantees a trace keeps."""

from tidings.extras import need

need("a trace", "sim", "numpy", "pyarrow")
