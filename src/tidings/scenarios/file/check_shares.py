"""Checks durable subscribers and groups: keys that belong together, and subscribers that share a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from tidings.core.errors import ScenarioError, TopicError
from tidings.core.events.subscription import make_interest
from tidings.core.events.topics import EVERYTHING, TopicPattern, check_topic
from tidings.core.sharing.choice import SHARE_NAME
from tidings.scenarios.file.decode import number, shown
from tidings.scenarios.file.schema import Scenario, SubscriberTable

_KEYS = (
    "group_by",
    "work_ms",
    "max_unacked",
    "max_deliveries",
    "dead_letter",
    "keep_for_s",
)
"""Keys that only a durable subscriber or a member of a group has."""
_KEEPING_KEYS = ("ack", "max_unacked", "max_deliveries", "dead_letter", "keep_for_s")
"""Of these, those of networks that keep events until they are done."""

Placed = tuple[str, SubscriberTable]
"""A subscriber with its place in the file."""


def check_shares(scenario: Scenario) -> None:
    """Check all subscribers; their topics, filters and times are checked before."""
    publishers = {publisher.name for publisher in scenario.publishers}
    by_name: dict[str, list[Placed]] = {}
    for index, subscriber in enumerate(scenario.subscribers):
        path = f"subscriber[{index}]"
        name = _check_keys(subscriber, scenario.overlay.mode, path)
        if name is None:
            continue
        _check_dead_letter(subscriber, path)
        if subscriber.dead_letter is not None and subscriber.name in publishers:
            raise ScenarioError(
                f"{path}.dead_letter: '{subscriber.name}' is also a publisher; give the subscriber a name of its own"
            )
        by_name.setdefault(name, []).append((path, subscriber))
    for name, members in by_name.items():
        for member in members[1:]:
            _check_alike(name, members[0], member)
        if members[0][1].durable is not None:
            _check_apart(name, members)


def _check_keys(subscriber: SubscriberTable, mode: str, path: str) -> str | None:
    """Return the name of the durable subscription or group, if any."""
    if subscriber.durable is not None and subscriber.group is not None:
        raise ScenarioError(f"{path}: give either durable or group, not both; a group is durable already")
    name = subscriber.durable if subscriber.group is None else subscriber.group
    if name is None:
        for key in _set_keys(subscriber):
            raise ScenarioError(f"{path}.{key}: needs durable or group")
        return None
    kind = "durable" if subscriber.group is None else "group"
    if re.fullmatch(SHARE_NAME, name) is None:
        raise ScenarioError(
            f"{path}.{kind}: {shown(name)} must have 1 to 64 letters, digits, '.', '_' or '-', "
            "and start with a letter or a digit"
        )
    if mode != "guaranteed":
        keys = ("durable",) if kind == "durable" else tuple(_set_keys(subscriber))
        for key in keys:
            if key in ("durable", *_KEEPING_KEYS):
                raise ScenarioError(f'{path}.{key}: needs overlay.mode "guaranteed", not "{mode}"')
    if kind == "group" and subscriber.order != "none":
        raise ScenarioError(f"{path}.order: '{subscriber.order}' is not available with group; use none")
    if subscriber.group_by is not None and kind == "durable":
        raise ScenarioError(
            f"{path}.group_by: is for members of a group; a durable subscriber gets all events"
        )
    if subscriber.changes:
        raise ScenarioError(f"{path}.changes: not allowed with {kind}, which keeps its topics")
    return name


def _set_keys(subscriber: SubscriberTable) -> Iterator[str]:
    yield from (key for key in _KEYS if getattr(subscriber, key) is not None)
    if subscriber.ack != "auto":
        yield "ack"


def _check_dead_letter(subscriber: SubscriberTable, path: str) -> None:
    topic, limit = subscriber.dead_letter, subscriber.max_deliveries
    if topic is None:
        if limit is not None:
            raise ScenarioError(
                f"{path}.max_deliveries: needs dead_letter, the topic for events that were delivered too often"
            )
        return
    if limit is None:
        raise ScenarioError(f"{path}.dead_letter: needs max_deliveries")
    try:
        check_topic(topic)
    except TopicError as error:
        raise ScenarioError(f"{path}.dead_letter: {error}") from None
    if any(TopicPattern(pattern).matches(topic) for pattern in subscriber.topics or (EVERYTHING.text,)):
        raise ScenarioError(f"{path}.dead_letter: {topic!r} is among the subscriber's own topics")


def _check_alike(name: str, first: Placed, other: Placed) -> None:
    """Check that two subscribers of one name want the same."""
    (where, one), (path, two) = first, other
    if (one.group is None) != (two.group is None):
        kinds = ("group", "durable subscription")
        raise ScenarioError(
            f"{path}.{'durable' if two.group is None else 'group'}: '{name}' is the name of a "
            f"{kinds[one.group is None]} in {where}"
        )
    kind = "durable" if one.group is None else "group"
    mine, its = (make_interest(each.topics or (EVERYTHING.text,), each.filter) for each in (two, one))
    differing = {
        "topics": mine.topics != its.topics,
        "filter": mine.sql != its.sql,
        "order": two.order != one.order,
        "group_by": two.group_by != one.group_by,
        "keep_for_s": two.keep_for_s != one.keep_for_s,
        "start": two.start != one.start,
    }
    for key, differs in differing.items():
        if differs:
            raise ScenarioError(f"{path}.{key}: must be the same as in {where}, which has the same {kind}")


def _check_apart(name: str, members: list[Placed]) -> None:
    """Check that a durable subscription has one subscriber at a time."""
    by_time = sorted(members, key=lambda member: member[1].subscribe_at_s)
    for (where, one), (path, two) in pairwise(by_time):
        end_s = one.unsubscribe_at_s
        if end_s is None or end_s > two.subscribe_at_s:
            leaves = "never leaves" if end_s is None else f"leaves at {number(end_s)} s"
            raise ScenarioError(
                f"{path}.subscribe_at_s: '{name}' is still held by {where} at {number(two.subscribe_at_s)} s: "
                f"that one {leaves} (unsubscribe_at_s)"
            )
