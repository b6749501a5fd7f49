"""Everything that runs on Spark; the rest of tidings does not import pyspark.

`import tidings.spark` makes `format("tidings")` available to Spark, whichever Python runs the program. Read `session`
and `tasks` first, then `format` (source and sink), `audit`, `plan` and `sweep`, each on its own.
"""

from tidings.extras import need

need("tidings.spark", "spark", "numpy", "pyarrow")

from tidings.spark.interpreter import use_this_python

use_this_python()
