"""What numbers events: `server` follows the paper, `machine` makes it deterministic, `leases` tell who is gone."""
