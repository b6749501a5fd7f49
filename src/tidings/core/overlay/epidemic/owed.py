"""Decides which patterns are watched for losses, and from which number on our clients are owed their events."""

from __future__ import annotations

from tidings.core.events.subscription import Interest
from tidings.core.kernel import Port
from tidings.core.overlay.epidemic.losses import LossDetector
from tidings.core.overlay.epidemic.patterns import PatternListener, Patterns
from tidings.core.overlay.forwarding import Forwarding, ForwardingListener


class Owed(ForwardingListener, PatternListener):
    """Watches a pattern from the moment its subscription is settled until nobody here subscribes."""

    def __init__(
        self, port: Port, forwarding: Forwarding, patterns: Patterns, losses: LossDetector, *, enabled: bool
    ) -> None:
        self._port = port
        self._patterns = patterns
        self._losses = losses
        self._enabled = enabled
        forwarding.listeners.append(self)
        patterns.listeners.append(self)

    def settled(self, interest: Interest) -> None:
        """Watch the interest's patterns: from now on, our clients are owed what is counted above these numbers.

        If a pattern is already watched, earlier subscribers are also owed what is below them.
        """
        for pattern in self._patterns.ids(interest) if self._enabled else ():
            if not self._losses.watches(pattern):
                self._losses.watch(pattern, self._patterns.counts(pattern))
                continue
            for origin, epoch, number in self._patterns.counts(pattern):
                if origin != self._port.node:
                    self._losses.high_water(origin, ((pattern, epoch, number),), self._port.now)

    def unsubscribed(self, pattern: bytes) -> None:
        self._losses.unwatch(pattern)

    def renamed(self, before: bytes, after: bytes) -> None:
        """Watch under the new name, which starts a new epoch at every origin, counted from 0."""
        if self._losses.watches(before):
            self._losses.unwatch(before)
            self._losses.watch(after, self._patterns.counts(after))
