"""`format("tidings")`: archives as a source, brokers as a sink."""
