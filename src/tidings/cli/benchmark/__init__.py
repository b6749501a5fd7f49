"""Measures for `tidings bench`. Read `run` (the publisher and the phases), `process` (the subscribers), `words` (their
messages to each other), then `network` (the brokers between them)."""
