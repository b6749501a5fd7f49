"""Event services over existing brokers: `nats_service`, `mqtt_service`, `redis_service`.

Read `external` (what they share), `keeper` (reconnecting), `outgoing` and `incoming` (publications and subscriptions
between connections), `session` (one connection), then the module of a broker.
"""
