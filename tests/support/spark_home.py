"""Where Spark is: the pip package, and a home made of it in which Python processes start in a third of the time.

The package has a zip with a second copy of pyspark, which the Python processes of a query (a dozen for a stream) prefer
and compile anew, each for itself. In a home without the zip they import what is installed.
"""

from __future__ import annotations

from pathlib import Path

NEEDED = ("bin", "jars")


def spark_package() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def make_spark_home(directory: Path) -> Path:
    """For SPARK_HOME; the same one each time."""
    home = directory / "spark-home"
    home.mkdir(exist_ok=True)
    for name in NEEDED:
        if not (home / name).exists():
            (home / name).symlink_to(spark_package() / name)
    return home
