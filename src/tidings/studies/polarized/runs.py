"""The experiment of the polarized paper (section IV), simulated.

A complete ternary tree of 40 brokers, a publisher at its root, a subscriber at each other broker; one event of 16
blocks per second; links of 50 ms that lose 2 % in bursts of 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidings.core.overlay.labels import parse_label
from tidings.scenarios.file.schema import (
    ConstantDelay,
    GilbertLoss,
    Network,
    Overlay,
    Publisher,
    Recovery,
    Scenario,
    SubscriberTable,
    TreeShape,
)
from tidings.scenarios.file.topology import labels
from tidings.scenarios.simulate import Simulation

BROKERS = 40
SUBSCRIBERS = BROKERS - 1
BLOCKS = 16
BLOCK_BYTES = 1_472
DELAY_MS = 50.0
LOSS = GilbertLoss(rate=0.02, burst=2)
START_S = 15.0
"""Announcements are lost, too: until about 8 s some brokers do not know all others, which would distort a short run."""
SETTLE_S = 10.0

SCHEMES: Mapping[str, Mapping[str, Any]] = {
    "push random": {"algorithm": "push"},
    "pull random": {"algorithm": "subscriber-pull", "pull": "advertise"},
    "push WDPG": {"algorithm": "push", "selection": "wdpg"},
    "push WRPG": {"algorithm": "push", "selection": "wrpg"},
    "push PGW .25": {"algorithm": "push", "selection": "pgw", "window": 0.25},
    "3PG .25": {"algorithm": "push+pull", "pull": "advertise", "window": 0.25},
    "3PG 1": {"algorithm": "push+pull", "pull": "advertise", "window": 1.0},
}
"""The paper's schemes as keys of [recovery]."""


def polarized_scenario(
    recovery: Recovery, events: int, *, seed: int = 1, loss: GilbertLoss = LOSS, settle_s: float = SETTLE_S
) -> Scenario:
    return Scenario(
        seed=seed,
        duration_s=START_S + events,
        settle_s=settle_s,
        network=Network(delay_ms=ConstantDelay(value=DELAY_MS), loss=loss),
        overlay=Overlay(mode="epidemic", shape=TreeShape(brokers=BROKERS, children=3)),
        recovery=recovery,
        publishers=(
            Publisher(
                name="p",
                at="b0",
                arrival="periodic",
                rate_hz=1.0,
                count=events,
                start_s=START_S,
                size_bytes=BLOCKS * recovery.block_bytes,
            ),
        ),
        subscribers=tuple(
            SubscriberTable(name=f"s{number}", at=f"b{number}") for number in range(1, BROKERS)
        ),
    )


def know_the_rates(simulation: Simulation) -> None:
    """Give brokers the true loss rate of each link, as after a long measurement: estimates of a short run are mere
    noise."""
    loss = simulation.plan.scenario.network.loss
    rate = loss.rate if isinstance(loss, GilbertLoss) else 0.0
    known = {parse_label(text): rate for text in labels(simulation.plan.topology).values()}
    for broker in simulation.epidemic_brokers:
        vars(broker.directory)["rates"] = lambda: known
