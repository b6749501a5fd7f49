"""Runs `tidings demo`, one live run: three sites, a killed broker, a site cut off, one order for all.

`demo.toml` is the scenario. Read `play.py` (all of it), `story.py` (the run, with recorders beside it), `scene.py` and
`view.py` (what a viewer sees), `result.py` and `archives.py` (the results), `plots.py` and `report.py` (the page).
"""
