"""Runs a scenario's subscriber with an order on a guaranteed network: after a crash, it resumes.

It stores what it is shown together with its position. So its subscription in the trace continues across a crash. If
it cannot resume, the subscription ends with the crash, and another begins at the restart.
"""

from __future__ import annotations

from typing import Protocol

from tidings.core.client.application import Application
from tidings.core.client.bookmark import Reached
from tidings.core.events.event import Publication
from tidings.core.events.subscription import Order, Subscription
from tidings.core.facts import Delivered
from tidings.scenarios.actor import NEVER, Actor, ActorHost


class ResumingHost(ActorHost, Protocol):
    reached: Reached | None
    """The subscriber's position: survives a crash, together with what it was shown."""

    def not_resumed(self) -> None: ...


class ResumingActor(Actor):
    def __init__(
        self,
        host: ResumingHost,
        name: str,
        condition: str | None,
        order: Order,
        *,
        made: int = 0,
        begun: tuple[str, ...] | None = None,
        crashed_at: int | None = None,
    ) -> None:
        super().__init__(host, name, condition, order, kept=True, made=made, begun=begun)
        self._resuming_host = host
        self._started_at = 0
        self._crashed_at = crashed_at
        """When the incarnation before crashed; None once it is known whether this one has resumed."""
        self._undone = 0
        """Events shown but not yet reported as done."""

    # --- Crashes and restarts

    def crashed(self) -> None:
        self.id = ""
        self._crashed_at = self._host.now

    def _make_id(self) -> str:
        return self._name

    def _start_with(self, application: Application, subscription: Subscription) -> None:
        self._started_at = self._host.now
        application.start(subscription, self._resuming_host.reached)

    def _check_resumed(self) -> None:
        """Begin anew if the servers took this incarnation for a new subscriber."""
        crashed_at, self._crashed_at = self._crashed_at, None
        application = self._host.application
        if crashed_at is None or application is None:
            return
        kept = self._resuming_host.reached
        if kept is None or kept.incarnation != application.reached(self.id, 0).incarnation:
            had = any(window.accepted_at < crashed_at <= window.cancelled_at for window in self._windows)
            if had and kept is not None and kept.done:
                self._resuming_host.not_resumed()
            self._begin_anew(crashed_at)

    def _begin_anew(self, crashed_at: int) -> None:
        """Close the crashed incarnation's windows, whose events under way are lost, and open a new one."""
        for window in self._windows:
            if window.cancelled_at == NEVER:
                self._close(window, crashed_at)
        self._windows.clear()
        self.current = None
        self._since = dict.fromkeys(self._since, self._started_at)
        if self._topics is not None:
            self.current = self._open_window(self._topics, self._started_at)

    # --- What the client says

    def on_fact(self, fact: object) -> None:
        super().on_fact(fact)
        self._undone = 0

    def _on_complete(self) -> None:
        self._check_resumed()
        self._keep_reached(0)
        super()._on_complete()

    def _on_publication(self, publication: Publication, fact: Delivered) -> None:
        """Store the event's position before anybody hears that the event is done."""
        self._check_resumed()
        self._undone += 1
        self._keep_reached(self._undone)
        super()._on_publication(publication, fact)

    def _keep_reached(self, count: int) -> None:
        if self._host.application is not None:
            self._resuming_host.reached = self._host.application.reached(self.id, count)

    def _on_broken(self, reason: str) -> None:
        super()._on_broken(reason)
        self._resuming_host.reached = None
        self._crashed_at = None
