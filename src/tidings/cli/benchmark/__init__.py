"""How `tidings bench` measures. Read `run` (the publisher, and the phases), `process` (the subscribers), `words` (what
the two say to each other), `network` (the brokers between them)."""
