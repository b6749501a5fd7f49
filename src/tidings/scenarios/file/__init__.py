"""A scenario file as types: `schema`, `decode`, `check`, then `expand` to the plan of a run."""
