"""A scenario over a grid of parameters and seeds: one simulation per task."""
