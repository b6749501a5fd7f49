"""The figures of the papers, run again: `tidings reproduce`.

A study (`study.py`) is a list of points and what to say of their results; `runner.py` runs the points of all the
studies asked for as one Spark job and keeps what is finished; `plots.py` draws, `report.py` writes it all down.
"""

from tidings.extras import need

need("tidings.studies", "lab", "numpy", "pyarrow", "scipy")
