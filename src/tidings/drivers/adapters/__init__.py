"""Event services over existing brokers: `nats`, `mqtt`, `redis`. What they share is in `external` and beside it."""
