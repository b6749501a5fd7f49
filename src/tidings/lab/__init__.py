"""What proves tidings: random scenarios, campaigns over seeds, invariants that watch a run."""
