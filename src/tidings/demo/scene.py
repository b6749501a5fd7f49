"""Holds what the demo shows at any moment: which brokers are up, each subscriber's progress, what has happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tidings.core.events.topics import EVERYTHING
from tidings.scenarios.file.expand import PlannedSubscriber, RunPlan
from tidings.scenarios.file.faults import PlannedFault
from tidings.scenarios.file.schema import CrashFault

TITLE = "tidings: three sites, one order for all"
UP = "up"
KILLED = "killed"
CUT_OFF = "cut off"
NS_PER_S = 1e9


class Happening(NamedTuple):
    """Describes something that happened. `at_s` counts from the common start; None before it and after the end."""

    at_s: float | None
    text: str

    def __str__(self) -> str:
        return f"{'' if self.at_s is None else f'{self.at_s:.1f} s':>7}  {self.text}"


@dataclass
class Scene:
    plan: RunPlan
    on_happening: Callable[[Happening], None] = lambda happening: None
    on_change: Callable[[], None] = lambda: None
    now_s: float = 0.0
    published: int = 0
    progress: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Subscriber -> how many events it is owed so far, and how many have arrived."""
    archived: dict[str, int] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    """The states of brokers that are not up."""
    happenings: list[Happening] = field(default_factory=list)

    def tell(self, text: str, at_ns: int | None = None) -> None:
        happening = Happening(None if at_ns is None else at_ns / NS_PER_S, text)
        self.happenings.append(happening)
        self.on_happening(happening)
        self.on_change()

    @property
    def brokers_of_sites(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for broker in self.plan.topology.brokers:
            found.setdefault(self.plan.sites.get(broker, ""), []).append(broker)
        return {site: found[site] for site in sorted(found)}

    @property
    def sequencers(self) -> tuple[str, ...]:
        """The brokers with a sequencer beside them."""
        return () if self.plan.ordering is None else self.plan.ordering.brokers

    @property
    def ordered_topics(self) -> tuple[str, ...]:
        """The ordered topics: here, all that are published."""
        servers = () if self.plan.ordering is None else self.plan.ordering.servers
        return tuple(topic for server in servers for topic in server.topics)

    @property
    def waiting(self) -> int:
        return sum(owed - arrived for owed, arrived in self.progress.values())

    # --- Faults

    def strike(self, planned: PlannedFault, at_ns: int) -> None:
        state = KILLED if isinstance(planned.fault, CrashFault) else CUT_OFF
        self.states |= dict.fromkeys(self._hit(planned), state)
        self.tell(fault_text(planned, self.plan), at_ns)

    def repair(self, planned: PlannedFault, at_ns: int) -> None:
        for broker in self._hit(planned):
            self.states.pop(broker, None)
        self.tell(f"{repair_text(planned, self.plan)}; {self.waiting:,} deliveries are waiting.", at_ns)

    def _hit(self, planned: PlannedFault) -> tuple[str, ...]:
        return planned.fault.nodes if isinstance(planned.fault, CrashFault) else planned.groups[0]


def fault_text(planned: PlannedFault, plan: RunPlan) -> str:
    if isinstance(planned.fault, CrashFault):
        nodes = planned.fault.nodes
        numbering = plan.ordering is not None and any(node in plan.ordering.brokers for node in nodes)
        also = " and the sequencer beside it" if numbering else ""
        return f"Killed {' and '.join(nodes)}{also} (kill -9)."
    return f"Cut {cut_off_text(planned, plan)} off: nothing passes between it and the others."


def short_text(planned: PlannedFault, plan: RunPlan) -> str:
    if isinstance(planned.fault, CrashFault):
        return f"{' and '.join(planned.fault.nodes)} {KILLED}"
    return f"{cut_off_text(planned, plan)} {CUT_OFF}"


def repair_text(planned: PlannedFault, plan: RunPlan) -> str:
    if isinstance(planned.fault, CrashFault):
        return f"Restarted {' and '.join(planned.fault.nodes)}"
    return f"Reconnected {cut_off_text(planned, plan)}"


def cut_off_text(planned: PlannedFault, plan: RunPlan) -> str:
    """Return the sites of the first group."""
    return " and ".join(sorted({plan.sites.get(node, node) for node in planned.groups[0]}))


def asks_for(subscriber: PlannedSubscriber) -> str:
    topics = subscriber.timeline[0].topics or ()
    selected = "everything" if topics == (EVERYTHING.text,) else ", ".join(topics)
    return selected if subscriber.filter is None else f"{selected} where {subscriber.filter}"
