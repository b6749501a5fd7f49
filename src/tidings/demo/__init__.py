"""The story of `tidings demo`, told by one live run: three sites, a killed broker, a site cut off, one order for all.

`demo.toml` is the scenario. Read `story.py` (the run, with recorders beside it), `scene.py` and `view.py` (what one
sees meanwhile), `result.py` and `archives.py` (what came of it), `plots.py` and `report.py` (the page that stays).
"""
