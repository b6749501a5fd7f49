"""What all processes know of each other: rows, and whether the partition agrees on them (the paper's topic membership).

A process raises the clock of its row when its channels or what it takes part in change, and sends the row to everybody
it can talk to; they pass it on to whom it cannot talk to. What got lost that way is noticed by the marks of beats:
processes whose marks differ compare versions, and send each other what is newer.

A process votes for the rows that it knows. When all processes that it reaches have voted for the same, the partition is
stable, and so are the views of its topics.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from msgspec import structs

from tidings.core.facts import Misbehaviour, PeerKnown, ViewChanged
from tidings.core.kernel import Part, Port, TimerName
from tidings.core.overlay.peers.channels import Channels
from tidings.core.overlay.peers.messages import MAX_PROCESSES, Digest, ProcessRow, Take, Vote
from tidings.core.overlay.peers.rows import ProcessRows, mark_of

SAY_NS = 20_000_000
"""How long a change of the own row may wait for others."""
VOTE_NS = 50_000_000
"""How long a process waits for more rows before it votes."""


class MembershipListener(Protocol):
    """Who wants to know about changes of the rows."""

    def rows_changed(self) -> None: ...


class TopicMembership(Part):
    name = "membership"

    def __init__(
        self, port: Port, channels: Channels, *, incarnation: int, clock: int = 0, address: str = ""
    ) -> None:
        super().__init__(port)
        self.rows = ProcessRows(ProcessRow(port.node, incarnation, clock, address, (), ()))
        self.listeners: list[MembershipListener] = []
        self._channels = channels
        channels.listeners.append(self)
        channels.handlers.update({ProcessRow: self.on_row, Vote: self.on_vote, Digest: self.on_digest})
        self._votes: dict[str, Vote] = {port.node: Vote(port.node, incarnation, 0, b"")}
        self._topics: dict[str, tuple[tuple[str, ...], bool] | None] = {}
        """Topics whose views are reported -> the last one."""
        self._takes: dict[str, Take] = {}
        """What this process takes part in, by its name for it."""
        self._saying = self._voting = False
        self.is_stable = False
        """Everybody in this partition knows the same rows."""
        self._compared_at: dict[str, int] = {}

    def start(self) -> None:
        self._changed()

    # --- What this process does

    def meet(self, process: str) -> None:
        """Talk to that process, if it can be reached."""
        self._channels.watch(process)

    def take_part(self, name: str, take: Take) -> None:
        """Take part in topics; everybody hears of it."""
        self._takes[name] = take
        self._say_soon()

    def leave(self, name: str) -> None:
        if self._takes.pop(name, None) is not None:
            self._say_soon()

    def watch_view(self, topic: str) -> None:
        """Report the view of that topic, and its changes."""
        if topic not in self._topics:
            self._topics[topic] = None
            self._report_views()

    def leave_for_good(self) -> None:
        """Tell everybody that this process goes and does not return."""
        self._takes.clear()
        self._say(left=True)

    @property
    def own(self) -> ProcessRow:
        row = self.rows.get(self.port.node)
        assert row is not None
        return row

    # --- The own row

    def _say_soon(self) -> None:
        if not self._saying:
            self._saying = True
            self.port.set_timer((self.name, "say"), self.port.now + SAY_NS)

    def _say(self, *, left: bool = False) -> None:
        """Raise the own clock if anything has changed, and tell everybody."""
        self._saying = False
        takes = tuple(dict.fromkeys(self._takes.values()))
        row = structs.replace(self.own, open=tuple(self._channels.open_peers), takes=takes, left=left)
        if row != self.own:
            self.rows.take(structs.replace(row, clock=row.clock + 1))
            self._send_to_all(self.own, self.port.node)
            self._changed()

    def _send_to_all(self, message: ProcessRow | Vote, sender: str) -> None:
        """Send something to everybody who does not get it from the process that it is of."""
        its_row = self.rows.get(message.process)
        served = () if its_row is None or message.process == self.port.node else its_row.open
        for peer in self._channels.open_peers:
            if peer not in (sender, message.process) and peer not in served:
                self._channels.cast(peer, message)

    # --- Time

    def on_timer(self, name: TimerName) -> None:
        if name[1] == "say":
            self._say()
        else:
            self._vote()

    def _vote(self) -> None:
        self._voting = False
        own, agreed = self._votes[self.port.node], self.rows.agreed
        if own.agreed != agreed:
            vote = structs.replace(own, serial=own.serial + 1, agreed=agreed)
            self._votes[self.port.node] = vote
            self._send_to_all(vote, self.port.node)
            self._changed()

    # --- Channels

    def opened(self, peer: str) -> None:
        self._say_soon()

    def closed(self, peer: str) -> None:
        self._say_soon()

    def arrived(self, peer: str, tickets: Sequence[Hashable]) -> None: ...

    def beat(self, peer: str, mark: bytes) -> None:
        """Compare notes if the peer does not know the same."""
        if mark == self._channels.mark:
            return
        now = self.port.now
        if now - self._compared_at.get(peer, -(10**18)) >= self._channels.interval_ns // 2:
            self._compared_at[peer] = now
            self._channels.cast(peer, self._digest(asks=True))

    # --- What others know

    def on_row(self, sender: str, message: ProcessRow) -> None:
        if message.process == self.port.node:
            self._on_own_row(sender, message)
            return
        known = self.rows.get(message.process)
        if known is None and len(self.rows) >= MAX_PROCESSES:
            self.port.emit(Misbehaviour(sender, f"tells of more than {MAX_PROCESSES} processes"))
            return
        if not self.rows.take(message):
            return
        self._send_to_all(message, sender)
        if message.left:
            self._channels.unwatch(message.process)
        else:
            if known is None or known.address != message.address:
                self.port.emit(PeerKnown(message.process, message.address))
            self._channels.watch(message.process)
        self._changed()

    def _on_own_row(self, sender: str, message: ProcessRow) -> None:
        """Somebody knows a row of an earlier life of ours, which was newer, or there are two of us."""
        if message.version > self.own.version:
            what = f"knows another process named {message.process!r}, or a later life of it"
            self.port.emit(Misbehaviour(sender, what))

    def on_vote(self, sender: str, message: Vote) -> None:
        known = self._votes.get(message.process)
        if message.process == self.port.node or (known is not None and known.version >= message.version):
            return
        if known is None and len(self._votes) >= MAX_PROCESSES:
            return
        self._votes[message.process] = message
        self._send_to_all(message, sender)
        self._changed()

    def on_digest(self, sender: str, message: Digest) -> None:
        """Send what is newer here, and ask for what is newer there."""
        theirs = {entry[0]: entry for entry in message.entries}
        for row in list(self.rows):
            entry = theirs.get(row.process)
            if entry is None or row.version > entry[1:3]:
                self._channels.cast(sender, row)
        for vote in self._votes.values():
            entry = theirs.get(vote.process)
            if vote.serial and (entry is None or vote.version > entry[3:5]):
                self._channels.cast(sender, vote)
        if message.asks and any(map(self._lacks, message.entries)):
            self._channels.cast(sender, self._digest(asks=False))

    def _lacks(self, entry: tuple[str, int, int, int, int]) -> bool:
        row = self.rows.get(entry[0])
        return row is None or row.version < entry[1:3] or self._vote_version(entry[0]) < entry[3:5]

    def _digest(self, *, asks: bool) -> Digest:
        return Digest(self._entries(), asks)

    def _entries(self) -> tuple[tuple[str, int, int, int, int], ...]:
        rows = sorted(self.rows, key=lambda row: row.process)
        return tuple((row.process, *row.version, *self._vote_version(row.process)) for row in rows)

    def _vote_version(self, process: str) -> tuple[int, int]:
        vote = self._votes.get(process)
        return (0, 0) if vote is None else vote.version

    # --- What follows

    def _changed(self) -> None:
        self._channels.mark = mark_of(self._entries())
        agreed = self.rows.agreed
        votes = (self._votes.get(process) for process in self.rows.reached)
        self.is_stable = all(vote is not None and vote.agreed == agreed for vote in votes)
        if self._votes[self.port.node].agreed != agreed and not self._voting:
            self._voting = True
            self.port.set_timer((self.name, "vote"), self.port.now + VOTE_NS)
        for listener in self.listeners:
            listener.rows_changed()
        self._report_views()

    def _report_views(self) -> None:
        if not self._topics:
            return
        stable, reached = self.is_stable, self.rows.reached
        for topic, before in list(self._topics.items()):
            view = (tuple(self.rows.members(topic, reached)), stable)
            if view != before:
                self._topics[topic] = view
                self.port.emit(ViewChanged(topic, *view))
