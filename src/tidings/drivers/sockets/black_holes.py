"""Turns sessions into black holes until a cut is healed, for tests of faults."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tidings.drivers.sockets.session import End, SessionState, SocketSession


class BlackHoles:
    """The peers that are cut off, and their connections: these stay open, but nothing passes."""

    def __init__(self) -> None:
        self.peers: frozenset[str] = frozenset()
        self.sessions: dict[SocketSession, str] = {}
        """Session -> the peer's name, which a session that was not set up does not know itself."""

    def cut(self, peers: Collection[str], standing: Iterable[SocketSession]) -> None:
        """Cut off these peers and no others. The silenced connections of those that are healed are aborted."""
        self.peers = frozenset(peers)
        for session, peer in list(self.sessions.items()):
            if peer not in self.peers:
                del self.sessions[session]
                _abort(session)
        for session in list(standing):
            if session.peer in self.peers:
                self.swallows(session, session.peer)

    def swallows(self, session: SocketSession, peer: str) -> bool:
        """Silence the session if its peer is cut off; return True if it is."""
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
