"""A client's side of durable subscriptions and groups: what it holds of them, and what it is done with.

The broker gives out numbered events, and this client reports which ones it is done with or gives back. The broker
answers each report: somebody else may have got an event meanwhile. After a lost connection the client attaches again
and claims what it still holds, and repeats what it was done with and got no answer to; unless the broker lost the share
and began a new one, whose numbers mean other events.

    asked -- accepted --> attached -- interrupted, connection lost --> asked
      |                      |
      +------ refused -------+--> forgotten
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Raw
from msgspec.structs import replace

from tidings.core.errors import WireError
from tidings.core.events.run import cut, decode_stretch
from tidings.core.facts import (
    Misbehaviour,
    ShareAsideShown,
    ShareAttached,
    ShareCancelled,
    ShareDelivered,
    ShareDetached,
    ShareDropped,
    ShareFinished,
    SharesListed,
)
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.messages import Message
from tidings.core.overlay.guaranteed.messages import MAX_RANGES
from tidings.core.overlay.guaranteed.share_messages import (
    NO_LIFE,
    Life,
    ShareAccepted,
    ShareAside,
    ShareAsideRequest,
    ShareAttach,
    ShareBack,
    ShareCalledBack,
    ShareDone,
    ShareEnd,
    ShareEnded,
    ShareForgotten,
    ShareGiven,
    ShareInterrupted,
    ShareLeave,
    ShareLeft,
    ShareList,
    ShareListRequest,
    ShareRefused,
)
from tidings.core.structures.range_set import RangeSet
from tidings.core.structures.ranges import Ranges, merged

ANEW = "its broker lost the subscription, and it began anew"


class HasBroker(Protocol):
    """The session that knows the current broker."""

    broker: str


class _Held:
    """One share that this client is attached to, or asks for."""

    __slots__ = (
        *("apart_at", "asked", "asks", "attached", "done", "holding", "leaving", "life", "unanswered"),
        *("expired", "unsent", "unsent_expired"),
    )

    def __init__(self, asked: ShareAttach) -> None:
        self.asked = asked
        self.asks = 0
        self.attached = False
        self.apart_at: int | None = None
        """Since when it is not attached; None: it is, or never was."""
        self.leaving = False
        self.life = NO_LIFE
        """Of the share that `holding` and `done` are numbers of."""
        self.unanswered = 0
        """Events given back in order, until the broker has called back what it sent after them."""
        self.holding = RangeSet()
        self.done = RangeSet()
        """Done, and not answered by the broker."""
        self.unsent: list[tuple[int, int]] = []
        """Done, and not reported since it attached."""
        self.expired = RangeSet()
        """Of `done`, what was not shown."""
        self.unsent_expired: list[tuple[int, int]] = []


class ShareHolder(Part):
    name = "shares"
    handles = {
        ShareAccepted: "on_share_accepted",
        ShareRefused: "on_share_refused",
        ShareInterrupted: "on_share_interrupted",
        ShareGiven: "on_share_given",
        ShareForgotten: "on_share_forgotten",
        ShareCalledBack: "on_share_called_back",
        ShareLeft: "on_share_left",
        ShareEnded: "on_share_ended",
        ShareAside: "on_share_aside",
        ShareList: "on_share_list",
    }

    def __init__(self, port: Port, session: HasBroker) -> None:
        super().__init__(port)
        self._session = session
        self._connected = False
        self._held: dict[str, _Held] = {}
        self._ending: dict[str, None] = {}
        """Shares that this client wants to end, by name."""
        self._reporting = False

    # --- Requests of the application

    def attach(self, request: ShareAttach) -> None:
        """Attach to a share; ShareAttached or ShareDetached follows."""
        if request.subscription in self._held:
            raise ValueError(f"subscription {request.subscription!r} already exists")
        self._held[request.subscription] = _Held(request)
        self._send(request)

    def finish(
        self, subscription: str, first: int, last: int, *, expired: bool = False, reports: bool = False
    ) -> None:
        """The application is done with these, or was not shown them because they had expired; ShareFinished follows.
        Unless the caller `reports` at once, the broker is told by the end of the turn."""
        held = self._held.get(subscription)
        if held is None:
            return
        held.holding.remove(first, last + 1)
        held.done.add_range(first, last + 1)
        held.unsent.append((first, last))
        if expired:
            held.expired.add_range(first, last + 1)
            held.unsent_expired.append((first, last))
        if not reports:
            self._report_soon()

    def _report_soon(self) -> None:
        if not self._reporting:
            self._reporting = True
            self.port.set_timer((self.name, "report"), self.port.now)

    def give_back(self, subscription: str, number: int, after_ns: int = 0, *, aside: bool = False) -> None:
        """The application is not done with the event: it comes again after a while, or is set aside."""
        held = self._held.get(subscription)
        if held is None:
            return
        held.holding.remove(number, number + 1)
        if held.asked.order != "none" and not aside:
            newer = tuple((max(start, number), stop - 1) for start, stop in held.holding if stop > number)
            if newer:
                self._drop(subscription, held, newer)
        self.report()
        if held.attached:  # otherwise it is given back by not being claimed
            held.unanswered += held.asked.order != "none" and not aside
            self._send(ShareBack(subscription, number, after_ns, aside))

    def leave(self, subscription: str, unseen: Ranges = ()) -> None:
        """Detach; ShareDetached follows. The application has not seen those in `unseen`."""
        held = self._held.get(subscription)
        if held is not None:
            self.report()
            held.leaving = True
            if self._connected:
                self._send(ShareLeave(subscription, unseen[:MAX_RANGES]))
            else:  # the broker knows that we are gone
                self._forget(subscription, "")

    def end(self, name: str) -> None:
        """End a share for good; ShareCancelled follows."""
        self._ending[name] = None
        self._send(ShareEnd(name))

    def ask_list(self, after: str) -> None:
        """Ask for the shares of the network with names after this one; SharesListed follows."""
        self._send(ShareListRequest(after))

    def ask_aside(self, name: str, after: int = 0, release: Ranges = (), drop: Ranges = ()) -> None:
        """Ask for events that the share has set aside, or release or drop them; ShareAsideShown follows."""
        self._send(ShareAsideRequest(name, after, release, drop))

    # --- The connection

    def on_link_up(self, peer: str) -> None:
        self._connected = True
        for name in self._ending:
            self._send(ShareEnd(name))
        for held in self._held.values():
            self._ask_again(held)

    def on_link_down(self, peer: str) -> None:
        self._connected = False
        for subscription, held in list(self._held.items()):
            self._part(held)
            if held.leaving:
                self._forget(subscription, "")

    def _ask_again(self, held: _Held) -> None:
        """Attach again, and claim what we hold, and what we were done with and got no answer to."""
        self._part(held)
        held.unsent, held.unsent_expired, held.unanswered = [], [], 0
        held.asks += 1
        ours = RangeSet((*held.holding, *held.done))
        holding = _ranges(ours)[:MAX_RANGES]  # whatever is beyond comes again
        self._send(replace(held.asked, takeover=False, holding=holding, life=held.life, ask=held.asks))

    def _part(self, held: _Held) -> None:
        if held.attached:
            held.attached, held.apart_at = False, self.port.now

    def _send(self, message: Message) -> None:
        if self._connected:
            self.port.send(self._session.broker, message)

    def on_timer(self, name: TimerName) -> None:
        self.report()

    def report(self) -> None:
        """Tell the broker what is done."""
        self._reporting = False
        for subscription, held in self._held.items():
            if held.unsent and held.attached:
                done, expired = merged(held.unsent), merged(held.unsent_expired)
                held.unsent, held.unsent_expired = [], []
                for start in range(0, len(done), MAX_RANGES):
                    part = done[start : start + MAX_RANGES]
                    of_part = tuple(each for each in expired if part[0][0] <= each[0] <= part[-1][1])
                    self._send(ShareDone(subscription, part, of_part[:MAX_RANGES]))

    # --- Answers of the broker

    def on_share_accepted(self, sender: str, message: ShareAccepted) -> None:
        held = self._held.get(message.subscription)
        if held is None:
            self._send(ShareLeave(message.subscription))
            return
        if message.ask != held.asks:
            return  # we have asked again meanwhile
        apart_ns = 0 if held.apart_at is None else self.port.now - held.apart_at
        held.attached, held.apart_at = True, None
        if message.life != held.life:
            self._begin_anew(message.subscription, held, message.life)
        kept = RangeSet((first, last + 1) for first, last in message.claimed)
        lost = [gap for start, stop in held.holding for gap in kept.missing(start, stop)]
        if lost:
            self._drop(message.subscription, held, tuple((start, stop - 1) for start, stop in lost))
        held.unsent, held.unsent_expired = list(_ranges(held.done)), list(_ranges(held.expired))
        self.report()
        life = ":".join(map(str, message.life))
        self.port.emit(ShareAttached(message.subscription, message.uncovered, life, apart_ns))

    def _begin_anew(self, subscription: str, held: _Held, life: Life) -> None:
        """Forget everything of the share's earlier life."""
        holding, done = _ranges(held.holding), _ranges(held.done)
        held.life, held.holding, held.done, held.expired = life, RangeSet(), RangeSet(), RangeSet()
        if holding:
            self.port.emit(ShareDropped(subscription, holding, ANEW))
        if done:
            self.port.emit(ShareFinished(subscription, (), done, ANEW))

    def on_share_interrupted(self, sender: str, message: ShareInterrupted) -> None:
        held = self._held.get(message.subscription)
        if held is not None and held.leaving:  # nobody else may answer: the share may have moved meanwhile
            self._forget(message.subscription, "")
        elif held is not None:
            self._ask_again(held)
            self.port.emit(ShareAttached(message.subscription, (message.home,)))

    def on_share_refused(self, sender: str, message: ShareRefused) -> None:
        self._forget(message.subscription, message.reason)

    def on_share_left(self, sender: str, message: ShareLeft) -> None:
        held = self._held.get(message.subscription)
        if held is not None and held.leaving:
            self._forget(message.subscription, "")

    def _forget(self, subscription: str, reason: str) -> None:
        if self._held.pop(subscription, None) is not None:
            self.port.emit(ShareDetached(subscription, reason))

    def on_share_given(self, sender: str, message: ShareGiven) -> None:
        held = self._held.get(message.subscription)
        if held is None or held.leaving or held.unanswered or not held.attached:
            return  # it comes again: we have left or ask again, or gave back what comes before it
        try:
            stretch = decode_stretch(Raw(message.events))
        except WireError as error:
            self.port.emit(Misbehaviour(sender, str(error)))
            return
        last = message.first + stretch.count - 1
        self._done_before(held, message.first, last)
        shift = stretch.first - message.first
        late, before = message.out_of_order, message.before
        for start, stop in held.done.missing(message.first, last + 1):
            held.holding.add_range(start, stop)
            part = cut(stretch, start + shift, stop - 1 + shift)
            place = (message.subscription, start, message.attempt)
            self.port.emit(ShareDelivered(*place, part, out_of_order=late, before=before))

    def _done_before(self, held: _Held, first: int, last: int) -> None:
        """Report once more what we were done with while the broker took us for gone: nobody else was."""
        again = _common(held.done, first, last)
        if again:
            held.unsent += again
            held.unsent_expired += [each for low, high in again for each in _common(held.expired, low, high)]
            self._report_soon()

    def on_share_called_back(self, sender: str, message: ShareCalledBack) -> None:
        held = self._held.get(message.subscription)
        if held is not None:
            held.unanswered = max(held.unanswered - 1, 0)
            self._drop(message.subscription, held, message.numbers)

    def _drop(self, subscription: str, held: _Held, numbers: Ranges) -> None:
        for first, last in numbers:
            held.holding.remove(first, last + 1)
        self.port.emit(ShareDropped(subscription, numbers))

    def on_share_forgotten(self, sender: str, message: ShareForgotten) -> None:
        held = self._held.get(message.subscription)
        if held is not None:
            for first, last in (*message.numbers, *message.refused):
                held.done.remove(first, last + 1)
                if held.expired:
                    held.expired.remove(first, last + 1)
            self.port.emit(ShareFinished(message.subscription, message.numbers, message.refused))

    def on_share_ended(self, sender: str, message: ShareEnded) -> None:
        if message.name in self._ending:
            del self._ending[message.name]
            self.port.emit(ShareCancelled(message.name, message.reason))

    def on_share_list(self, sender: str, message: ShareList) -> None:
        self.port.emit(SharesListed(message.rows, message.more))

    def on_share_aside(self, sender: str, message: ShareAside) -> None:
        shown = (message.events, message.changed, message.more, message.reason, message.status)
        self.port.emit(ShareAsideShown(message.name, *shown))


def _common(numbers: RangeSet, first: int, last: int) -> list[tuple[int, int]]:
    """Return which numbers from first to last are in the set."""
    edges = [
        first - 1,
        *(edge for low, stop in numbers.missing(first, last + 1) for edge in (low, stop - 1)),
        last + 1,
    ]
    return [(low + 1, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True) if high - low > 1]


def _ranges(numbers: RangeSet) -> Ranges:
    return tuple((start, stop - 1) for start, stop in numbers)
