"""A scenario in wall time, with real processes: `run` conducts, `processes` are started and broken, `client`
publishes and subscribes, `ledger` writes the trace."""
