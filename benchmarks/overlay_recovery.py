"""How late the first event after a failure on its path arrives; for benchmarks/overlay.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

import numpy as np
from overlay_runs import DELTA, simulate

from tidings.scenarios.file.schema import (
    ChainShape,
    CrashFault,
    Fault,
    LinkFault,
    Overlay,
    Publisher,
    Scenario,
    SubscriberTable,
)
from tidings.studies.partitions.runs import guarantees_hold

CHAIN = 8
FIRST_FAILURE_S, EVERY_S, FAILED_S = 10.0, 25.0, 15.0

Draw = Callable[[Random], tuple[str, ...]]


class Recovery(NamedTuple):
    """Milliseconds above the usual latency, for an event published 1 ms after a failure or after its end."""

    failure: str
    failures: int
    usual_ms: float
    mean_ms: float
    p99_ms: float
    max_ms: float
    end_mean_ms: float
    end_max_ms: float


def recovery(scale: float) -> Iterator[Recovery]:
    """Measure recovery on a chain, from one end to the other."""
    failures = round(200 * scale)
    inner = range(1, CHAIN - 1)
    yield recovery_from("crash of a broker", failures, lambda random: (f"b{random.choice(inner)}",))
    yield recovery_from("crash of delta brokers in a row", failures, lambda r: in_a_row(r.choice(inner[:-1])))
    yield recovery_from("link", failures, lambda r: in_a_row(r.randrange(CHAIN - 2)), link=True)
    yield recovery_from("link beside the subscriber", failures, lambda _: in_a_row(CHAIN - 2), link=True)


def in_a_row(first: int) -> tuple[str, ...]:
    return tuple(f"b{first + offset}" for offset in range(DELTA))


def recovery_from(failure: str, failures: int, draw: Draw, *, link: bool = False) -> Recovery:
    trace = simulate(recovery_scenario(failures, draw, link=link)).trace
    coded = trace.coded
    if not guarantees_hold(trace):
        raise SystemExit(f"recovery from {failure}: a guarantee does not hold")
    source = np.array([name.rstrip("0123456789") for name in coded.events.source_names])
    of_source = source[coded.events.source[coded.event]]
    latency_ms = (coded.at - coded.events.at[coded.event]) / 1e6
    usual_ms = float(np.median(latency_ms[of_source == "before"]))
    late_ms, end_ms = (latency_ms[of_source == name] - usual_ms for name in ("failed", "ended"))
    return Recovery(
        failure,
        failures,
        usual_ms,
        float(late_ms.mean()),
        float(np.percentile(late_ms, 99)),
        float(late_ms.max()),
        float(end_ms.mean()),
        float(end_ms.max()),
    )


def recovery_scenario(failures: int, draw: Draw, *, link: bool) -> Scenario:
    """Return the scenario: three publishers publish once, a second before each failure, just after it, and just after
    its end."""
    random = Random(1)
    publishers: list[Publisher] = []
    faults: list[Fault] = []
    for number in range(failures):
        at_s = FIRST_FAILURE_S + EVERY_S * number + random.random()
        until_s = at_s + FAILED_S
        names = draw(random)
        if link:
            faults.append(LinkFault(at_s=at_s, until_s=until_s, between=(names[0], names[1])))
        else:
            faults.append(CrashFault(at_s=at_s, until_s=until_s, nodes=names))
        for name, start_s in (("before", at_s - 1.0), ("failed", at_s + 0.001), ("ended", until_s + 0.001)):
            publishers.append(
                Publisher(name=f"{name}{number}", at="b0", count=1, start_s=start_s, arrival="periodic")
            )
    return Scenario(
        seed=1,
        duration_s=FIRST_FAILURE_S + EVERY_S * failures,
        overlay=Overlay(delta=DELTA, shape=ChainShape(brokers=CHAIN)),
        publishers=tuple(publishers),
        subscribers=(SubscriberTable(name="s", at=f"b{CHAIN - 1}"),),
        faults=tuple(faults),
    )
