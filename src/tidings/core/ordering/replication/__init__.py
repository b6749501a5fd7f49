"""A server that survives: `replica`, its `journal`, its `standby_link`, the `witness` that rules between two
replicas."""
