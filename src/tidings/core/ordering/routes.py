"""Tracks which node is active for each server, as far as one node knows. A wrong guess corrects itself."""

from __future__ import annotations

from tidings.core.ordering.layout import Layout


class Routes:
    def __init__(self, layout: Layout) -> None:
        self._replicas = {place.name: layout.replicas(place.name) for place in layout.servers}
        self._active = {server: replicas[0] for server, replicas in self._replicas.items()}

    def active(self, server: str) -> str:
        return self._active[server]

    def is_replica(self, server: str | None, node: str) -> bool:
        return node in self._replicas.get(server or "", ())

    def speaks(self, server: str, node: str) -> bool:
        """Record that the node is active for the server; True if that is new."""
        if node in self._replicas.get(server, ()) and self._active[server] != node:
            self._active[server] = node
            return True
        return False

    def suspect(self, server: str) -> None:
        """Switch to the other replica because this one does not answer."""
        for node in self._replicas.get(server, ()):
            if node != self._active[server]:
                self._active[server] = node
                return
