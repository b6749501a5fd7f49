"""Total and causal notification order over any event service (paper: ordering): servers, publishers, subscribers."""
