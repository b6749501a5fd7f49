"""Sessions that are cut off, for tests of faults: black holes until the cut is healed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidings.drivers.sockets.session import End, SessionState, SocketSession


class BlackHoles:
    """Who is cut off, and what is left of the connections with them: they stand as they did, and nothing passes."""

    def __init__(self) -> None:
        self.peers: frozenset[str] = frozenset()
        self.sessions: dict[SocketSession, str] = {}
        """With the peer's name: one that was not set up has none itself."""

    def cut(self, peers: Collection[str], standing: Iterable[SocketSession]) -> None:
        """These peers, and no others. What is left of connections with those who are healed is aborted."""
        self.peers = frozenset(peers)
        for session, peer in list(self.sessions.items()):
            if peer not in self.peers:
                del self.sessions[session]
                _abort(session)
        for session in list(standing):
            if session.peer in self.peers:
                self.swallows(session, session.peer)

    def swallows(self, session: SocketSession, peer: str) -> bool:
        """True, and not a word passes from now on, if the peer is cut off."""
        if peer not in self.peers:
            return False
        if not session.silent:
            session.silence()
            self.sessions[session] = peer
        return True


def _abort(session: SocketSession) -> None:
    session.silent = False
    if session.state is SessionState.ENDED:
        session.close_transport()
    else:
        session.end(End("the network was cut", refused=False))
    session.abort()
