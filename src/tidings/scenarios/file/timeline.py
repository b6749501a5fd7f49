"""Computes a subscriber's topics over time from subscribe_at_s, changes and unsubscribe_at_s."""

from __future__ import annotations

from typing import NamedTuple

from tidings.core.errors import ScenarioError
from tidings.core.events.topics import EVERYTHING
from tidings.scenarios.file.decode import listed, number
from tidings.scenarios.file.schema import Change, SubscriberTable


class Step(NamedTuple):
    """Gives the topic patterns from `at_s` on, never an empty tuple; None: unsubscribed."""

    at_s: float
    topics: tuple[str, ...] | None


def subscription_timeline(subscriber: SubscriberTable, path: str) -> tuple[Step, ...]:
    """Return the steps by time, each different from the one before; ScenarioError names a key below `path`."""
    _check_times(subscriber, path)
    topics = list(dict.fromkeys(subscriber.topics or (EVERYTHING.text,)))
    topics_by_time: dict[float, tuple[str, ...]] = {subscriber.subscribe_at_s: tuple(topics)}
    for index, change in sorted(enumerate(subscriber.changes), key=lambda pair: pair[1].at_s):
        topics = _changed(topics, change, f"{path}.changes[{index}]")
        topics_by_time[change.at_s] = tuple(topics)
    steps: list[Step] = []
    for at_s, present in topics_by_time.items():
        step = Step(at_s, present or None)
        if not steps or steps[-1].topics != step.topics:
            steps.append(step)
    if subscriber.unsubscribe_at_s is not None and steps[-1].topics is not None:
        steps.append(Step(subscriber.unsubscribe_at_s, None))
    return tuple(steps)


def _check_times(subscriber: SubscriberTable, path: str) -> None:
    start, end = subscriber.subscribe_at_s, subscriber.unsubscribe_at_s
    if end is not None and end <= start:
        raise ScenarioError(
            f"{path}.unsubscribe_at_s: must be after subscribe_at_s ({number(start)}), not {number(end)}"
        )
    for index, change in enumerate(subscriber.changes):
        where = f"{path}.changes[{index}]"
        if not change.add and not change.remove:
            raise ScenarioError(f"{where}: needs topics in 'add' or 'remove'")
        if change.at_s < start:
            raise ScenarioError(
                f"{where}.at_s: must be at least subscribe_at_s ({number(start)}), not {number(change.at_s)}"
            )
        if end is not None and change.at_s >= end:
            raise ScenarioError(
                f"{where}.at_s: must be before unsubscribe_at_s ({number(end)}), not {number(change.at_s)}"
            )


def _changed(topics: list[str], change: Change, path: str) -> list[str]:
    """Return the topics after a change, which removes first and then adds; there are no duplicates."""
    for topic in change.remove:
        if topic not in topics:
            raise ScenarioError(
                f"{path}.remove: {topic!r} is not subscribed at {number(change.at_s)} s; "
                f"subscribed: {listed(topics) or 'nothing'}"
            )
    kept = [topic for topic in topics if topic not in change.remove]
    return list(dict.fromkeys([*kept, *change.add]))
