"""Which node speaks for each server now, as far as one node knows: a guess that mistakes correct."""

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
        """The node said something that only the active replica says; True if that is news."""
        if node in self._replicas.get(server, ()) and self._active[server] != node:
            self._active[server] = node
            return True
        return False

    def suspect(self, server: str) -> None:
        """It does not answer: try the other one."""
        for node in self._replicas.get(server, ()):
            if node != self._active[server]:
                self._active[server] = node
                return
