"""Finds the interests that a publication matches, once per publication and process.

All brokers of a process share one `Matcher`: a live broker process has one broker, the simulator and the embedded
network have many. The matching interests stay with the publication object as a `Selection`, so a broker on the way
only looks up where that selection goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidings.core.errors import WireError
from tidings.core.events.event import Publication
from tidings.core.events.run import Run, Stretch, look
from tidings.core.events.subscription import Interest
from tidings.core.filters.language.predicates import Scalar
from tidings.core.filters.matching.interest_index import InterestIndex

MAX_SELECTIONS = 65_536


class Selection:
    """A set of interests that some publications match. Compared by identity, so brokers can cache routes by it."""

    __slots__ = ("interests",)

    def __init__(self, interests: tuple[Interest, ...]) -> None:
        self.interests = interests


class _FilterAsks(Exception):  # noqa: N818 - nothing is wrong
    """Some filter must be evaluated: the topic alone does not decide."""


def _not_by_topic() -> Mapping[str, Scalar]:
    raise _FilterAsks


class Matcher:
    def __init__(self) -> None:
        self._index: InterestIndex[Interest] = InterestIndex()
        self._held: dict[Interest, Interest] = {}
        self._references: dict[Interest, int] = {}
        self._selections: dict[tuple[Interest, ...], Selection] = {}
        self._by_topic: dict[str, tuple[tuple[Interest, ...], Selection]] = {}
        self.token = object()
        """Replaced on every change, which invalidates the selections that publications remember."""

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, interest: Interest) -> Interest:
        """Return the one object for this interest. Each `hold` needs a `release`."""
        held = self._held.get(interest)
        if held is None:
            held = self._held[interest] = interest
            self._references[interest] = 0
            self._index.add(interest, interest.topics, interest.pattern)
            self._forget()
        self._references[held] += 1
        return held

    def release(self, interest: Interest) -> None:
        self._references[interest] -= 1
        if self._references[interest] == 0:
            del self._references[interest], self._held[interest]
            self._index.remove(interest)
            self._forget()

    def select(self, publication: Publication) -> Selection:
        """Return the selection of a publication. Raise WireError if its attributes are needed and do not decode."""
        if publication.selection_token is self.token:
            known: Selection = publication.selection
            return known
        selection = publication.selection = self._select(publication.topic, publication.attributes)
        publication.selection_token = self.token
        return selection

    def select_content(self, topic: str, attributes: Mapping[str, Scalar]) -> Selection:
        """Return the selection that an event with this topic and these attributes would have."""
        return self._select(topic, lambda: attributes)

    def parts(self, stretch: Stretch, complain: Callable[[WireError], None]) -> list[Stretch]:
        """Cut publications into stretches of one selection each, which they remember.

        A publication whose attributes are needed and do not decode is dropped and reported to `complain`.
        """
        if isinstance(stretch, Run):
            return self.cut(stretch, complain)
        try:
            self.select(stretch)
        except WireError as error:
            complain(error)
            return []
        return [stretch]

    def cut(self, run: Run, complain: Callable[[WireError], None]) -> list[Stretch]:
        """Cut the run into stretches of one selection each, which they remember.

        An event whose attributes are needed and do not decode is dropped and reported to `complain`.
        """
        if run.selection_token is self.token:
            return [run]
        if run.topic:
            try:
                selection = self._select(run.topic, _not_by_topic)
            except _FilterAsks:
                pass
            else:
                return [self._remember(run, selection)]
        return self._cut_by_filters(run, complain)

    def _cut_by_filters(self, run: Run, complain: Callable[[WireError], None]) -> list[Stretch]:
        stretches: list[Stretch] = []
        first, last, held = run.first, run.first - 1, None
        try:
            for sequence, content in enumerate(run.look(), run.first):
                selection = self._select_or_complain(content.topic, content.attributes, complain)
                if selection is not held:
                    if held is not None:
                        stretches.append(self._remember(run.cut(first, last), held))
                    first, held = sequence, selection
                last = sequence
            if held is not None:
                stretches.append(self._remember(run.cut(first, last), held))
        except WireError as error:  # the run's body does not match its header
            complain(error)
        return stretches

    def _select_or_complain(
        self,
        topic: str,
        attributes: Callable[[], Mapping[str, Scalar]],
        complain: Callable[[WireError], None],
    ) -> Selection | None:
        try:
            return self._select(topic, attributes)
        except WireError as error:
            complain(error)
            return None

    def _remember(self, stretch: Stretch, selection: Selection) -> Stretch:
        stretch.selection, stretch.selection_token = selection, self.token
        return stretch

    def _select(self, topic: str, attributes: Callable[[], Mapping[str, Scalar]]) -> Selection:
        interests = self._index.match(topic, attributes)
        known = self._by_topic.get(topic)
        if (
            known is not None and known[0] is interests
        ):  # no filter was evaluated: the index returned its cached tuple
            return known[1]
        selection = self._selections.get(interests)
        if selection is None:
            if len(self._selections) >= MAX_SELECTIONS:
                self._selections.clear()
            selection = self._selections[interests] = Selection(interests)
        if len(self._by_topic) >= MAX_SELECTIONS:
            self._by_topic.clear()
        self._by_topic[topic] = interests, selection
        return selection

    def _forget(self) -> None:
        self.token = object()
        self._selections.clear()
        self._by_topic.clear()


def selected(stretch: Stretch, interest: Interest) -> list[tuple[int, int]]:
    """Return the sequences that the interest selects, as ranges; none if the stretch does not decode."""
    ranges: list[tuple[int, int]] = []
    try:
        for sequence, event in enumerate(look(stretch), stretch.first):
            if interest.matches(event):
                begin = ranges.pop()[0] if ranges and ranges[-1][1] == sequence - 1 else sequence
                ranges.append((begin, sequence))
    except WireError:
        return []
    return ranges
