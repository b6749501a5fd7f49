"""Asks the homes of shares elsewhere whether anybody is attached there: what only waits is no answer to a request.

A home is asked over the link to it (far_links.py), as for `tidings subscriptions`. Of each share one question is under
way at a time. Whoever asks meanwhile waits for the next one: it may know of a member that attached after the first.
Where no answer comes, nobody is called: somebody may be attached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidings.core.events.event import INT_MAX
from tidings.core.overlay.guaranteed.far_links import FarLinks
from tidings.core.overlay.guaranteed.former_home import Place
from tidings.core.overlay.guaranteed.share_messages import ShareAside, ShareAsideRequest

ASKER = "share:?"
"""The prefix of the names under which a broker asks. No client has one."""
MAX_SHARES_ASKED = 64
"""A request that more shares elsewhere select is not asked about."""
MAX_WAITING = 4_096
"""How many requests wait for the next question about a share; no more are asked about."""
PATIENCE_NS = 10_000_000_000


class _Doubt:
    """A request that only shares select: `nobody` is called if nobody is attached to any of these."""

    __slots__ = ("left", "nobody")

    def __init__(self, left: int, nobody: Callable[[], None]) -> None:
        self.left = left
        self.nobody = nobody


class _Question:
    """About one share."""

    __slots__ = ("asker", "doubts", "home", "later", "sent", "since")

    def __init__(self, home: Place, asker: str, now: int) -> None:
        self.home = home
        self.asker = asker
        self.since = now
        self.sent = False
        self.doubts: list[_Doubt] = []
        self.later: list[_Doubt] = []
        """Raised after it was sent."""


class Attendance:
    """What this broker asks about shares elsewhere. `now` is the time."""

    def __init__(self, links: FarLinks, now: Callable[[], int]) -> None:
        self._links = links
        self._now = now
        self._asked = 0
        self._questions: dict[str, _Question] = {}
        """By the name of the share."""

    def ask(self, homes: Mapping[str, Place], nobody: Callable[[], None]) -> None:
        """Call `nobody` if the homes of these shares, by name, say that nobody is attached."""
        if not homes:
            nobody()
        elif len(homes) <= MAX_SHARES_ASKED:
            doubt = _Doubt(len(homes), nobody)
            for name, home in homes.items():
                self._raise(name, home, doubt)

    def _raise(self, name: str, home: Place, doubt: _Doubt) -> None:
        question = self._questions.get(name)
        if question is None or question.home != home:
            question = self._questions[name] = self._make(home)
        doubts = question.later if question.sent else question.doubts
        if len(doubts) < MAX_WAITING:
            doubts.append(doubt)
        self._send(name, question)

    def _make(self, home: Place) -> _Question:
        self._asked += 1
        return _Question(home, f"{ASKER}{self._asked}", self._now())

    def _send(self, name: str, question: _Question) -> None:
        if question.sent:
            return
        self._links.open(*question.home)
        if self._links.is_up(question.home.broker):
            question.sent = True
            self._links.send(question.home.broker, question.asker, ShareAsideRequest(name, after=INT_MAX))

    def heard(self, asker: str, message: ShareAside) -> None:
        """A home has answered."""
        question = self._questions.get(message.name)
        if question is None or question.asker != asker:
            return  # too late
        del self._questions[message.name]
        if question.later:
            following = self._questions[message.name] = self._make(question.home)
            following.doubts = question.later
            self._send(message.name, following)
        if message.attended or message.reason:
            return
        for doubt in question.doubts:
            doubt.left -= 1
            if not doubt.left:
                doubt.nobody()

    def far_up(self, broker: str) -> None:
        for name, question in self._questions.items():
            if question.home.broker == broker:
                self._send(name, question)

    def far_down(self, broker: str) -> None:
        """What that broker was asked has no answer."""
        for name, question in list(self._questions.items()):
            if question.home.broker == broker:
                del self._questions[name]

    def check(self) -> None:
        """Give up on homes that cannot be reached."""
        for name, question in list(self._questions.items()):
            if self._now() - question.since > PATIENCE_NS:
                del self._questions[name]
