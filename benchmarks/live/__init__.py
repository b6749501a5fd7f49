"""The live path against other brokers, as real processes on loopback. `benchmarks/live.py` is the command."""
