"""Controls a running broker or sequencer from its parent process, by lines of JSON on its stdin.

    {"cut": ["b2", "s0"]}    from now on drop everything to and from these peers, and only these

The end of stdin ends the process, so that it never survives its parent.
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
    """One line of stdin."""

    cut: frozenset[str]


class Controlled(Protocol):
    """What can be controlled: a BrokerServer or a SequencerHost."""

    def cut(self, peers: Collection[str]) -> None: ...


def cut_line(peers: Iterable[str]) -> bytes:
    """Return the line that cuts the process off from these peers, and from no others."""
    return msgspec.json.encode({"cut": sorted(peers)}) + b"\n"


async def obey(server: Controlled) -> None:
    """Carry out the commands on stdin until it ends."""
    wake_when_orphaned()
    async for lines in stdin_lines():
        for line in lines:
            try:
                order = msgspec.json.decode(line, type=ControlLine)
            except msgspec.MsgspecError as error:
                log.warning("ignored a line on stdin that is not a command: %s", error)
                continue
            server.cut(order.cut)


def wake_when_orphaned() -> None:
    """Have the kernel send SIGCONT when the parent ends: a process under SIGSTOP does not see its stdin close.

    Only Linux can do this. Elsewhere a paused process is left behind if its parent is killed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)
