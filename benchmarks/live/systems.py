"""All systems, by the names that jobs and `--only` use."""

from __future__ import annotations

from importlib import import_module

from live.system import System

BEST_EFFORT, GUARANTEED, TOTAL = "tidings", "tidings guaranteed", "tidings total order"
NATS, JETSTREAM, REDIS, MOSQUITTO = "NATS core", "JetStream", "Redis Streams", "Mosquitto"

PEERS = {
    NATS: ("live.nats_core", "NatsCore"),
    JETSTREAM: ("live.nats_jetstream", "JetStream"),
    REDIS: ("live.redis_streams", "RedisStreams"),
    MOSQUITTO: ("live.mosquitto", "Mosquitto"),
}
OWN = {
    BEST_EFFORT: ("live.own", "Tidings", "best-effort"),
    GUARANTEED: ("live.own", "Tidings", "guaranteed"),
    TOTAL: ("live.own", "Tidings", "guaranteed", "total"),
}
SYSTEMS: dict[str, tuple[str, ...]] = {**PEERS, **OWN}
"""Name -> module, class and its arguments: a process imports only the one that it needs."""
EVENTS_SHARE = {JETSTREAM: 0.25, REDIS: 0.5, MOSQUITTO: 0.1, TOTAL: 0.5}
"""Slow systems get fewer events where rates are measured, so that all take about the same time."""


def system_of(name: str) -> System:
    module, kind, *arguments = SYSTEMS[name]
    system: System = getattr(import_module(module), kind)(*arguments)
    return system
