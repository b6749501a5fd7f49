"""Sessions of the guaranteed overlay: which are wanted, established and active, and who is unreachable.

    wanted -> connected -> established -> gone -> wanted ...
                 |             ^
                 |  greeting   |    suspected: silent for a while; an answer to a heartbeat refutes it
                 +-------------+

A broker wants sessions with its primary neighbours and, behind each unreachable one, with that one's neighbours, up to
the reach of delta + 1 (partitions, section IV). A session is active while no established broker lies strictly between.
The driver opens and closes connections; this part detects silence, by heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidings.core.facts import Misbehaviour, SessionUnwanted, SessionWanted
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.messages import Refused
from tidings.core.overlay.guaranteed.messages import Greeting, Heartbeat, Neighbour
from tidings.core.overlay.guaranteed.neighbourhood import Neighbourhood
from tidings.core.overlay.labels import Label, distance, label_text

HEARTBEAT_NS = 500_000_000
SUSPECT_NS = 1_500_000_000
UNREACHABLE_NS = 2_500_000_000
"""A peer that was silent for this long, and did not answer when it was suspected, is unreachable."""
PATIENCE_NS = 1_000_000_000
"""A wanted neighbour that has never answered is bypassed after this long."""
MAX_CACHED_FRONTIERS = 4_096


class PeerState:
    """The state of one peer, connected or not."""

    __slots__ = (
        "connected",
        "established",
        "heard_at",
        "incarnation",
        "losses",
        "needed_there",
        "probed",
        "wanted_at",
        "window",
    )

    def __init__(self) -> None:
        self.connected = False
        self.established = False
        self.heard_at = 0
        self.wanted_at = 0
        self.incarnation = 0
        self.losses = 0
        """The number of its last loss, counting all our losses of peers."""
        self.window = 1
        self.needed_there = False
        """The peer wants the session."""
        self.probed = False


class SessionListener:
    """Callbacks for the parts above the sessions. They do nothing by default."""

    def activated(self, peer: str) -> None: ...
    def deactivated(self, peer: str) -> None: ...

    def lost(self, peer: str) -> None:
        """The connection broke: nothing that was sent on it counts."""

    def changed(self) -> None:
        """The set of established or active sessions changed."""

    def beat(self) -> None:
        """Called with each heartbeat."""

    def established(self, peer: str) -> None: ...
    def neighbours_changed(self) -> None: ...

    def ended(self, peer: str) -> None:
        """We closed the connection, or stopped wanting one."""


def has_left(news: Mapping[str, Neighbour], peer: str) -> bool:
    """Return True if the peer has left the network for good."""
    neighbour = news.get(peer)
    return neighbour is not None and neighbour.gone


class Sessions(Part):
    name = "sessions"
    handles = {Greeting: "on_greeting", Heartbeat: "on_heartbeat", Refused: "on_refused"}

    def __init__(
        self,
        port: Port,
        neighbourhood: Neighbourhood,
        news: Mapping[str, Neighbour],
        *,
        delta: int,
        incarnation: int,
        window: int,
        address: str = "",
    ) -> None:
        super().__init__(port)
        self.neighbourhood = neighbourhood
        self.delta = delta
        self.incarnation = incarnation
        self.active: dict[str, None] = {}
        self.suspicions = self.refutations = 0
        self.listeners: list[SessionListener] = []
        """Called in this order."""
        self._news = news
        self._window = window
        self.address = address
        self._sessions: dict[str, PeerState] = {}
        self._strangers: dict[str, None] = {}
        """Connected peers not known as brokers: clients, or brokers that will greet us."""
        self._wanted: dict[str, None] = {}
        """What the driver was told to keep open, including sessions that only the other side needs."""
        self._needed: dict[str, None] = {}
        self._wanted_for_others: dict[str, int] = {}
        """Peers of circuits that we carry, with the time until which they are wanted (relays.py)."""
        self._frontiers: dict[Label, str | None] = {}
        self._losses = 0
        self._beat_due = 0
        self._started = False
        self._unreported_loss = False
        self._stale = self._refreshing = False

    def _tell_ended(self, peer: str) -> None:
        for listener in self.listeners:
            listener.ended(peer)

    def _tell_deactivated(self, peer: str) -> None:
        for listener in self.listeners:
            listener.deactivated(peer)

    # --- Queries

    def established(self, peer: str) -> bool:
        session = self._sessions.get(peer)
        return session is not None and session.established

    def window_of(self, peer: str) -> int:
        """Return how many publications that peer sends before they are taken."""
        session = self._sessions.get(peer)
        return 1 if session is None else session.window

    def frontier(self, target: Label) -> str | None:
        """Return the nearest established broker on the path to `target`; None if there is none within reach."""
        try:
            return self._frontiers[target]
        except KeyError:
            pass
        if len(self._frontiers) >= MAX_CACHED_FRONTIERS:
            self._frontiers.clear()
        nearest = next((peer for peer in self.neighbourhood.towards(target) if self.established(peer)), None)
        self._frontiers[target] = nearest
        return nearest

    def unreachable(self) -> list[str]:
        """Return the wanted brokers without an established session, nearest first."""
        names = [peer for peer in self._wanted if not self.established(peer)]
        own = self.neighbourhood.label
        return sorted(names, key=lambda peer: (distance(own, self.neighbourhood.label_of(peer)), peer))

    def partitions(self) -> list[tuple[str, list[str], list[str]]]:
        """Return what is unreachable from here: (identifier, the brokers, the nearest reachable ones behind them).

        With somebody reachable behind it, it is an island; otherwise a barrier (partitions, section III). The
        identifier has this broker, its incarnation and a number that grows with every loss.
        """
        found = []
        for peer in self.neighbourhood.primary:
            if not self.established(peer) and peer in self._sessions:
                inside: list[str] = []
                reached: list[str] = []
                self._explore(peer, inside, reached)
                number = max(self._sessions[name].losses for name in inside if name in self._sessions)
                found.append((f"{self.neighbourhood.name}/{self.incarnation}/{number}", inside, reached))
        return found

    def _explore(self, peer: str, inside: list[str], reached: list[str]) -> None:
        if self.established(peer):
            reached.append(peer)
            return
        inside.append(peer)
        for other in self.neighbourhood.behind(peer):
            self._explore(other, inside, reached)

    def want_for_others(self, peer: str, until: int) -> None:
        """Keep a session to that peer until then, even if we do not need it ourselves."""
        known = peer in self._wanted_for_others
        self._wanted_for_others[peer] = until
        if not known:
            self.refresh()

    def unreachable_since(self, peer: str) -> int:
        """Return when we lost that peer, or began to want it."""
        return self._sessions[peer].wanted_at

    # --- Connections

    def start(self) -> None:
        self._started = True
        self.refresh()
        self._set_beat()

    def neighbours_changed(self) -> None:
        """The members or addresses of the neighbourhood changed."""
        for peer in [peer for peer in self._sessions if peer not in self.neighbourhood]:
            if self._sessions[peer].established:
                self._end(peer)
        if self._started:
            self.refresh()
        for listener in self.listeners:
            listener.neighbours_changed()

    def on_link_up(self, peer: str) -> None:
        if peer not in self.neighbourhood:
            self._strangers[peer] = None
            return
        session = self._session(peer)
        if session.connected:
            self._gone(peer, session)
        self._greet(peer, session)

    def _greet(self, peer: str, session: PeerState) -> None:
        session.connected = True
        session.heard_at = self.port.now
        session.probed = False
        own = self.neighbourhood
        self.port.send(peer, Greeting(own.label, self.delta, self.incarnation, self._window, self.address))

    def on_link_down(self, peer: str) -> None:
        self._strangers.pop(peer, None)
        session = self._sessions.get(peer)
        if session is not None and session.connected:
            self._gone(peer, session)
            self.refresh()

    def on_greeting(self, sender: str, message: Greeting) -> None:
        if sender in self._strangers:
            del self._strangers[sender]
            self._greet(sender, self._session(sender))
        session = self._sessions.get(sender)
        if session is None or not session.connected or session.established:
            return
        reason = self._refusal(sender, message)
        if reason is not None:
            self.port.emit(Misbehaviour(sender, reason))
            self.port.send(sender, Refused(reason))
            self._end(sender)
            if sender not in self.neighbourhood:
                del self._sessions[sender]
            return
        session.heard_at = self.port.now
        session.established = True
        session.incarnation = message.incarnation
        session.window = message.window
        session.needed_there = True
        for listener in self.listeners:
            listener.established(sender)
        self.refresh()

    def _refusal(self, peer: str, greeting: Greeting) -> str | None:
        """Return why there can be no session with that peer; None if there can."""
        own = self.neighbourhood
        if greeting.delta != self.delta:
            return f"{peer} has delta = {greeting.delta}, but {own.name} has delta = {self.delta}: they must agree"
        label = label_text(greeting.label)
        if has_left(self._news, peer):
            return f"{peer} has left this network"
        try:
            own.add(peer, greeting.label, greeting.address)
        except ValueError as error:
            return f"{own.name} cannot accept {peer} with label {label}: {error}"
        return None

    def on_refused(self, sender: str, message: Refused) -> None:
        self.port.emit(Misbehaviour(sender, f"refused the connection: {message.reason}"))

    def _end(self, peer: str) -> None:
        """Close the connection. If it is still wanted, the driver dials again."""
        session = self._sessions[peer]
        self.port.emit(SessionUnwanted(peer))
        if session.connected:
            self._gone(peer, session)
        self._tell_ended(peer)
        if peer in self._wanted:
            if peer in self.neighbourhood:
                self.port.emit(SessionWanted(peer, self.neighbourhood.address_of(peer)))
            else:
                del self._wanted[peer]

    def _gone(self, peer: str, session: PeerState) -> None:
        session.connected = session.needed_there = False
        session.wanted_at = self.port.now
        if not session.established:
            return
        session.established = False
        if peer in self.active:
            del self.active[peer]
            self._frontiers.clear()
            self._tell_deactivated(peer)
        self._unreported_loss = True
        self._losses += 1
        session.losses = self._losses
        for listener in self.listeners:
            listener.lost(peer)

    def _session(self, peer: str) -> PeerState:
        session = self._sessions.get(peer)
        if session is None:
            session = self._sessions[peer] = PeerState()
        return session

    # --- Wanted and active

    def refresh(self) -> None:
        """Recompute what is wanted and what is active, and report changes to the listeners.

        Listeners may cause further changes, which are handled after all listeners know of the first.
        """
        self._stale = True
        if self._refreshing:
            return
        self._refreshing = True
        try:
            while self._stale:
                self._stale = False
                self._refresh()
        finally:
            self._refreshing = False

    def _refresh(self) -> None:
        self._frontiers.clear()
        for peer in self._refresh_wanted():
            self._tell_ended(peer)
        active = dict.fromkeys(self._nearest(self.neighbourhood.primary))
        stopped = [peer for peer in self.active if peer not in active]
        for peer in stopped:
            del self.active[peer]
            self._tell_deactivated(peer)
        started = [peer for peer in active if peer not in self.active]
        self.active = active
        for peer in started:
            for listener in self.listeners:
                listener.activated(peer)
        if started or stopped or self._unreported_loss:
            self._unreported_loss = False
            for listener in self.listeners:
                listener.changed()

    def _nearest(self, peers: tuple[str, ...]) -> Iterator[str]:
        """Yield the established ones among these and, behind each other one, the nearest established."""
        for peer in peers:
            if self.established(peer):
                yield peer
            else:
                yield from self._nearest(self.neighbourhood.behind(peer))

    def _refresh_wanted(self) -> list[str]:
        """Tell the driver what is wanted, and return what no longer is."""
        wanted = dict.fromkeys(self._reach_out(self.neighbourhood.primary))
        now = self.port.now
        self._wanted_for_others = {
            peer: until
            for peer, until in self._wanted_for_others.items()
            if until > now and peer in self.neighbourhood
        }
        wanted.update(dict.fromkeys(self._wanted_for_others))
        self._needed = wanted
        ended: list[str] = []
        for peer in [peer for peer in self._wanted if peer not in wanted]:
            session = self._sessions[peer]
            if not (session.established and session.needed_there):
                del self._wanted[peer]
                self.port.emit(SessionUnwanted(peer))
                ended.append(peer)
        for peer in wanted:
            if peer not in self._wanted:
                self._wanted[peer] = None
                session = self._session(peer)
                session.wanted_at = self.port.now
                self.port.emit(SessionWanted(peer, self.neighbourhood.address_of(peer)))
        return ended

    def _reach_out(self, peers: tuple[str, ...]) -> Iterator[str]:
        for peer in peers:
            yield peer
            if self._out_of_reach(peer):
                yield from self._reach_out(self.neighbourhood.behind(peer))

    def _out_of_reach(self, peer: str) -> bool:
        session = self._sessions.get(peer)
        if session is None or session.established:
            return False
        was_there = session.incarnation > 0
        return was_there or (peer in self._wanted and self.port.now - session.wanted_at >= PATIENCE_NS)

    # --- Heartbeats

    def on_heartbeat(self, sender: str, message: Heartbeat) -> None:
        session = self._sessions.get(sender)
        if session is None or not session.connected:
            return
        session.heard_at = self.port.now
        session.needed_there = message.wanted
        if session.probed:
            session.probed = False
            self.refutations += 1
        if message.answer_wanted:
            self.port.send(sender, Heartbeat(sender in self._needed))

    def on_timer(self, name: TimerName) -> None:
        now = self.port.now
        if now - self._beat_due > HEARTBEAT_NS:  # we were suspended, so the silence may be our own fault
            for session in self._sessions.values():
                session.heard_at = max(session.heard_at, now - SUSPECT_NS)
        for peer, session in list(self._sessions.items()):
            if session.connected:
                self._beat(peer, session, now)
        self._set_beat()
        self.refresh()
        for listener in self.listeners:
            listener.beat()

    def _beat(self, peer: str, session: PeerState, now: int) -> None:
        silent_ns = now - session.heard_at
        if silent_ns >= UNREACHABLE_NS:
            self._end(peer)
            return
        suspected = silent_ns >= SUSPECT_NS
        if suspected and not session.probed:
            session.probed = True
            self.suspicions += 1
        self.port.send(peer, Heartbeat(peer in self._needed, suspected))

    def _set_beat(self) -> None:
        self._beat_due = self.port.now + HEARTBEAT_NS
        self.port.set_timer((self.name, "beat"), self._beat_due)
