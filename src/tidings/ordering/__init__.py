"""Total and causal order for applications: where sequencer servers stand."""
