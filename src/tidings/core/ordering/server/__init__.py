"""Numbers events. Read `server` (the paper's algorithm), `machine` (deterministic), `leases` (which clients live)."""
