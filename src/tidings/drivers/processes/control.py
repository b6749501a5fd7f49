"""How whoever started a broker or a sequencer goes on to tell it things: lines of JSON on its stdin.

    {"cut": ["b2", "s0"]}    lose everything to and from these, and only these, from now on

The end of stdin ends the process: so none survives its parent, however that ended.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import sys
from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec

from tidings.drivers.processes.stdin import stdin_lines

PR_SET_PDEATHSIG = 1

log = logging.getLogger("tidings.cli")


class ControlLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line."""

    cut: frozenset[str]


class Controlled(Protocol):
    """What is controlled: a BrokerServer or a SequencerHost."""

    def cut(self, peers: Collection[str]) -> None: ...


def cut_line(peers: Iterable[str]) -> bytes:
    """The line that cuts the process off from these peers, and from no others."""
    return msgspec.json.encode({"cut": sorted(peers)}) + b"\n"


async def obey(server: Controlled) -> None:
    """Do what stdin says, until it ends."""
    wake_when_orphaned()
    async for lines in stdin_lines():
        for line in lines:
            try:
                order = msgspec.json.decode(line, type=ControlLine)
            except msgspec.MsgspecError as error:
                log.warning("a line on stdin is not a command: %s", error)
                continue
            server.cut(order.cut)


def wake_when_orphaned() -> None:
    """A process that SIGSTOP holds does not see its stdin end: let the end of its parent wake it.

    Elsewhere than on Linux nobody can ask for that; there it matters only to a parent that is killed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
