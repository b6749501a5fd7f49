"""Computes which published events each subscription selects, once per distinct interest.

An interest is a set of topic patterns and a filter. Topics are matched by name before any event is looked at. A
filter is evaluated once for each distinct combination of topic and attributes, however many events have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tidings.core.errors import FilterError, TopicError, TraceError
from tidings.core.events.event import RESERVED_ATTRIBUTE
from tidings.core.events.subscription import Interest, make_interest
from tidings.core.events.text import attribute_value
from tidings.core.events.topics import TopicPattern
from tidings.core.filters.language.predicates import Scalar
from tidings.scenarios.trace.tables import table_text

Array = npt.NDArray[np.int64]

MAX_KEPT = 20_000_000
"""The selected events remembered over all interests; beyond this, all are forgotten and computed again."""

_NOTHING: Array = np.empty(0, dtype=np.int64)


class Interests:
    """Holds the distinct interests of a trace; `of_subscription` maps rows of `subscribed` to interests."""

    def __init__(
        self, published: Any, subscribed: Any, event_rows: Array, directory: Path | str | None = None
    ) -> None:
        """Number the interests. TraceError, here and later, names `directory` and the filter, topic or attribute that
        cannot be parsed."""
        self._published = published
        self._directory = directory
        self._event_rows = event_rows
        self._distinct: dict[Interest, int] = {}
        self.of_subscription: Array = self._numbered(subscribed)
        self._events_of_pattern: dict[TopicPattern, list[int]] = {}
        self._selected: dict[int, Array] = {}
        self._kept = 0
        self._interests = list(self._distinct)

    def __len__(self) -> int:
        return len(self._interests)

    def selected(self, interest: int) -> Array:
        """Return the numbers of the events that this interest selects, ascending."""
        if interest not in self._selected:
            if self._kept > MAX_KEPT:
                self._selected.clear()
                self._kept = 0
            self._selected[interest] = self._select(self._interests[interest])
            self._kept += len(self._selected[interest])
        return self._selected[interest]

    def selected_keys(self, interests: Array) -> Array:
        """Return `interest * events + event` of all that these interests, given ascending, select; ascending."""
        events = len(self._event_rows)
        keys = [self.selected(interest) + interest * events for interest in interests.tolist()]
        return np.concatenate([_NOTHING, *keys])

    def values_of(self, attribute: str) -> Array:
        """Return a number for each event; equal numbers mean equal values of this attribute, or that it has none."""
        if attribute == RESERVED_ATTRIBUTE:
            return self._topic_of_event
        numbers: dict[str | None, int] = {}
        of_row = [
            numbers.setdefault(dict(attributes).get(attribute), len(numbers))
            for attributes in self._published["attributes"].to_pylist()
        ]
        return np.array(of_row, dtype=np.int64)[self._event_rows]

    def _numbered(self, subscribed: Any) -> Array:
        known: dict[tuple[tuple[str, ...], str | None], int] = {}
        numbers = []
        columns = (subscribed["topics"].to_pylist(), subscribed["filter"].to_pylist())
        for row, (topics, sql) in enumerate(zip(*columns, strict=True)):
            written = (tuple(topics), sql)
            if written not in known:
                interest = self._interest(written, subscribed, row)
                known[written] = self._distinct.setdefault(interest, len(self._distinct))
            numbers.append(known[written])
        return np.array(numbers, dtype=np.int64)

    def _select(self, interest: Interest) -> Array:
        topics = sorted({topic for pattern in interest.topics for topic in self._topics_of(pattern)})
        events = np.sort(np.concatenate([_NOTHING, *(self._events_by_topic[topic] for topic in topics)]))
        if interest.pattern is None or not len(events):
            return events
        contents, class_of = self._contents
        classes = class_of[events]
        matching = [number for number in np.unique(classes) if interest.pattern.matches(contents[number])]
        return events[np.isin(classes, matching)]

    def _topics_of(self, pattern: TopicPattern) -> list[int]:
        if pattern.exact:
            topic = self._topic_numbers.get(pattern.text)
            return [] if topic is None else [topic]
        if pattern not in self._events_of_pattern:
            self._events_of_pattern[pattern] = [
                number for topic, number in self._topic_numbers.items() if pattern.matches(topic)
            ]
        return self._events_of_pattern[pattern]

    @cached_property
    def _topics(self) -> Any:
        return self._published["topic"].combine_chunks().dictionary_encode()

    @cached_property
    def _topic_numbers(self) -> dict[str, int]:
        return {topic: number for number, topic in enumerate(self._topics.dictionary.to_pylist())}

    @cached_property
    def _topic_of_event(self) -> Array:
        indices = np.asarray(self._topics.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
        topics: Array = indices[self._event_rows]
        return topics

    @cached_property
    def _events_by_topic(self) -> list[Array]:
        topics = self._topic_of_event
        order = np.argsort(topics, kind="stable").astype(np.int64)
        bounds = np.searchsorted(topics[order], np.arange(1, len(self._topic_numbers)))
        return np.split(order, bounds)

    @cached_property
    def _contents(self) -> tuple[list[Mapping[str, Scalar]], Array]:
        """The distinct contents as filters see them, and the content of each event."""
        topics = self._published["topic"].to_pylist()
        numbers: dict[tuple[str, tuple[tuple[str, str | None], ...]], int] = {}
        of_row = [
            numbers.setdefault((topic, tuple(attributes)), len(numbers))
            for topic, attributes in zip(topics, self._published["attributes"].to_pylist(), strict=True)
        ]
        contents: list[Mapping[str, Scalar]] = []
        for topic, attributes in numbers:
            try:
                values = {name: attribute_value(text) for name, text in attributes}
            except TraceError as error:
                event = self._published["event_id"][of_row.index(len(contents))]
                raise TraceError(
                    f"{table_text(self._directory, 'published')}: event {event}: {error}"
                ) from error
            contents.append({**values, RESERVED_ATTRIBUTE: topic})
        return contents, np.array(of_row, dtype=np.int64)[self._event_rows]

    def _interest(self, written: tuple[tuple[str, ...], str | None], subscribed: Any, row: int) -> Interest:
        try:
            return make_interest(*written)
        except (FilterError, TopicError) as error:
            whose = "/".join(subscribed[name][row].as_py() for name in ("subscriber", "subscription"))
            place = table_text(self._directory, "subscribed")
            raise TraceError(f"{place}: subscription {whose}: {error}") from error
