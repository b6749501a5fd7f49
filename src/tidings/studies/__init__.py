"""Reproduces the figures and claims of the papers: `tidings reproduce`.

A study (`study.py`) is a list of points and the panels and claims drawn from their results. `runner.py` runs the points
of all requested studies as one Spark job and keeps finished ones; `plots.py` draws, `report.py` writes the report. One
folder per paper holds its study, runs, panels and claims.
"""

from tidings.extras import need

need("tidings.studies", "lab", "numpy", "pyarrow", "scipy")
