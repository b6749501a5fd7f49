"""Logs recurring problems once."""

from __future__ import annotations

import logging

MAX_COMPLAINTS = 1_000
"""So many different complaints are logged once each; after that they may be logged again."""

log = logging.getLogger("tidings.net")


class Complaints:
    """Logs each complaint of a node once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logged: dict[tuple[str, str], None] = {}

    def __call__(self, about: str, what: str) -> None:
        if len(self._logged) >= MAX_COMPLAINTS:
            self._logged.clear()
        if (about, what) not in self._logged:
            self._logged[about, what] = None
            log.warning("%s: %s: %s", self._name, about, what)


class LinkLog:
    """Logs why a link is down, unless the reason is the same as the last time."""

    def __init__(self, name: str, peer: str, address: object) -> None:
        self._what = f"{name}: link to {peer} at {address}"
        self._last = ""

    def __call__(self, reason: str) -> None:
        if reason != self._last:
            self._last = reason
            log.warning("%s: %s", self._what, reason)
