"""Runs a scenario's subscriber that starts with history: first what its broker's archive has, then live events.

It subscribes, then its host reads the archive, as a `HistoryStream` does (bus/history.py). Live events wait until the
history has been shown; then those follow that the history did not have. A crash ends the subscription: the next life
starts with history again, as a program does that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from tidings.core.client.application import Application
from tidings.core.client.seam import Seam
from tidings.core.events.event import Publication
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import Delivered, OrderGap
from tidings.scenarios.actor import NEVER, Actor, ActorHost, Window
from tidings.scenarios.file.archives import EARLIEST


class HistoryHost(ActorHost, Protocol):
    def read_history(self, subscription: Subscription, reading: int) -> None:
        """Wait until the archive has everything that does not come live, and call the actor's `settled`. Then pass
        every row by its `seam`, call `show_history` with what the subscription selects, and `go_live` at the end. If
        that fails, call `start_again`. Stop once `actor.reading` is another."""


def place_of(publication: Publication, fact: Delivered) -> tuple[str, int, int]:
    """Return what the seam compares: the event's place in its order if it has one, or in its source."""
    stamp = fact.stamp
    if stamp is None:
        return publication.source, publication.incarnation, publication.sequence
    return str(stamp.topic), 0, stamp.number + publication.sequence - fact.stretch.first


class HistoryActor(Actor):
    def __init__(
        self, host: HistoryHost, name: str, condition: str | None, order: Order, *, made: int = 0
    ) -> None:
        super().__init__(host, name, condition, order, made=made)
        self.seam = Seam()
        self.reading = 0
        """Numbers the attempts to start; 0 while there is none."""
        self._attempts = 0
        self._reader = host
        self._is_live = False
        self._subscription: Subscription | None = None
        """What to read the history for, until it is being read."""
        self._held: list[Delivered] = []
        """Live events that came before the history was shown; their broker sends no more than its window."""

    # --- Starting

    def _make_id(self) -> str:
        return f"{self._name}~{self.lives}.{self._attempts}"

    def _open_window(self, topics: tuple[str, ...], at: int) -> Window:
        window = super()._open_window(topics, at)
        window.shown_since = 0
        return window

    @property
    def _start_of_window(self) -> str | None:
        return None if self._is_live else EARLIEST

    def _start_with(self, application: Application, subscription: Subscription) -> None:
        self._attempts += 1
        self.seam = Seam()
        self._subscription = replace(subscription, history=True)
        application.start(self._subscription)

    def _on_complete(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            self.reading = self._attempts
            self._reader.read_history(subscription, self.reading)
        elif self._is_live:
            super()._on_complete()

    def change(self, topics: tuple[str, ...] | None) -> None:
        if topics is None and self.id and not self._is_live:
            self._end_attempt()  # who leaves before the history was shown leaves at once
        super().change(topics)

    def start_again(self) -> None:
        """Subscribe again: the broker's archive cannot continue what was begun."""
        application = self._end_attempt()
        if self.current is not None and self.current.accepted_at != NEVER:
            self._forget()  # some of its history may have been shown
        if self._topics is not None:
            self._follow(application, self._host.now)

    def _end_attempt(self) -> Application:
        application = self._host.application
        assert application is not None, "the client is up"
        for fact in self._stop_reading():
            if fact.ticket is not None:
                fact.ticket.done()
        application.end(self.id)
        self.id, self._begun = "", None
        return application

    def crashed(self) -> None:
        super().crashed()
        self._stop_reading()
        self._forget()

    def _stop_reading(self) -> list[Delivered]:
        """Return the live events that waited."""
        self.reading = 0
        self._is_live = False
        self._subscription = None
        held, self._held = self._held, []
        return held

    # --- What the archive has

    def settled(self) -> None:
        """The archive has everything that does not come live: from now on nothing is missed."""
        super()._on_complete()

    def show_history(self, publications: Iterable[Publication]) -> None:
        for publication in publications:
            super()._on_publication(publication, Delivered(self.id, publication))

    def go_live(self) -> None:
        """The history has been shown."""
        self._is_live = True
        held, self._held = self._held, []
        for fact in held:
            self.on_fact(fact)

    # --- What the client says

    def on_fact(self, fact: object) -> None:
        if isinstance(fact, Delivered) and not self._is_live:
            self._held.append(fact)
        else:
            super().on_fact(fact)

    def _wants(self, topic: str, published_at: int) -> bool:
        return bool(self._since)  # its topics never change

    def _on_publication(self, publication: Publication, fact: Delivered) -> None:
        if self.seam.admits(*place_of(publication, fact)):
            super()._on_publication(publication, fact)

    def _on_gap(self, fact: OrderGap) -> None:
        if self._is_live:
            super()._on_gap(fact)
            return
        self._host.gap(fact.reason)
        if fact.ticket is not None:
            fact.ticket.done()
        self.start_again()
