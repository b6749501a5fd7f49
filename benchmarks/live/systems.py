"""All systems, by the name that jobs and `--only` give them."""

from __future__ import annotations

from live.mosquitto import Mosquitto
from live.nats_core import NatsCore
from live.nats_jetstream import JetStream
from live.own import Tidings
from live.redis_streams import RedisStreams
from live.system import System

BEST_EFFORT, GUARANTEED, TOTAL = "tidings", "tidings guaranteed", "tidings total order"
NATS, JETSTREAM, REDIS, MOSQUITTO = "NATS core", "JetStream", "Redis Streams", "Mosquitto"

OWN: dict[str, System] = {
    BEST_EFFORT: Tidings(BEST_EFFORT, "best-effort"),
    GUARANTEED: Tidings(GUARANTEED, "guaranteed"),
    TOTAL: Tidings(TOTAL, "guaranteed", "total"),
}
PEERS: dict[str, System] = {
    NATS: NatsCore(NATS),
    JETSTREAM: JetStream(JETSTREAM),
    REDIS: RedisStreams(REDIS),
    MOSQUITTO: Mosquitto(MOSQUITTO),
}
SYSTEMS = {**PEERS, **OWN}
EVENTS_SHARE = {JETSTREAM: 0.25, REDIS: 0.5, MOSQUITTO: 0.1, TOTAL: 0.5}
"""Slow systems get fewer events where rates are measured, so that all take about as long."""
