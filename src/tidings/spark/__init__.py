"""What runs on Spark. Nothing else of tidings imports pyspark.

After `import tidings.spark`, Spark finds `format("tidings")` in whichever Python runs the program.
"""

from tidings.extras import need

need("tidings.spark", "spark", "numpy", "pyarrow")

from tidings.spark.interpreter import use_this_python

use_this_python()
