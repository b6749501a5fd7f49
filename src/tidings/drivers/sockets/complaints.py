"""What goes wrong goes wrong again and again: it is told to the log once."""

from __future__ import annotations

import logging

MAX_COMPLAINTS = 1_000
"""So many different complaints are told once each; then they may be told again."""

log = logging.getLogger("tidings.net")


class Complaints:
    def __init__(self, name: str) -> None:
        self._name = name
        self._told: dict[tuple[str, str], None] = {}

    def __call__(self, about: str, what: str) -> None:
        if len(self._told) >= MAX_COMPLAINTS:
            self._told.clear()
        if (about, what) not in self._told:
            self._told[about, what] = None
            log.warning("%s: %s: %s", self._name, about, what)


class LinkLog:
    """Why a link is down, once per reason and outage."""

    def __init__(self, name: str, peer: str, address: object) -> None:
        self._what = f"{name}: link to {peer} at {address}"
        self._last = ""

    def __call__(self, reason: str) -> None:
        if reason != self._last:
            self._last = reason
            log.warning("%s: %s", self._what, reason)
