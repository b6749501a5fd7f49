"""Computes what `tidings top` shows from the brokers' status at two moments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

COUNTERS = ("received_events", "sent_events", "received_bytes", "sent_bytes")
RATES = tuple(f"{counter}_per_s" for counter in COUNTERS)


class Look(NamedTuple):
    """Holds the status at one moment by URL, or why there is none."""

    at_s: float
    seen: dict[str, Mapping[str, Any] | str]


class TopRows(NamedTuple):
    """Holds rows for people and programs: one per server and one per session, busiest sessions first."""

    servers: list[dict[str, Any]]
    sessions: list[dict[str, Any]]


def rates(before: Look, after: Look, own_names: Iterable[str] = ()) -> TopRows:
    """Return the rates between two looks, without the watcher's own sessions and those that ended in between."""
    hidden = frozenset(own_names)
    elapsed_s = max(after.at_s - before.at_s, 1e-9)
    servers, sessions = [], []
    for url, status in after.seen.items():
        if isinstance(status, str):
            servers.append({"server": url, "state": status})
            continue
        earlier = before.seen.get(url)
        rows = _session_rows(status, {} if isinstance(earlier, str | None) else earlier, elapsed_s)
        rows = [row for row in rows if row["peer"] not in hidden]
        server = _name_of(url, status)
        servers.append(_server_row(server, status, rows))
        sessions += [{"server": server, **row} for row in rows]
    sessions.sort(key=lambda row: (-row[RATES[0]] - row[RATES[1]], -row[RATES[2]] - row[RATES[3]]))
    return TopRows(servers, sessions)


def _session_rows(
    status: Mapping[str, Any], earlier: Mapping[str, Any], elapsed_s: float
) -> list[dict[str, Any]]:
    known = {_identity(session): session for session in _sessions(earlier)}
    began_anew = earlier.get("incarnation") != status.get("incarnation")
    rows = []
    for session in _sessions(status):
        counted = {} if began_anew else known.get(_identity(session), {})
        row = {key: session.get(key) for key in ("peer", "role", "address", "waiting_bytes", "dropped")}
        for counter, rate in zip(COUNTERS, RATES, strict=True):
            now, then = session.get(counter, 0), counted.get(counter, 0)
            # A counter that fell belongs to a new connection of the same peer.
            row[rate] = round((now - then if now >= then else now) / elapsed_s, 1)
        rows.append(row)
    return rows


def _sessions(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = status.get("sessions")
    return found if isinstance(found, list) else []  # if there are too many, only their number


def _identity(session: Mapping[str, Any]) -> tuple[object, ...]:
    return session.get("peer"), session.get("role"), session.get("address")


def _name_of(url: str, status: Mapping[str, Any]) -> str:
    return str(status.get("broker") or status.get("sequencer") or url)


def _server_row(server: str, status: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    subscriptions = status.get("subscriptions")
    row = {
        "server": server,
        "state": "up",
        "mode": status.get("mode"),
        "clients": sum(row["role"] not in ("broker", "sequencer") for row in rows),
        "subscriptions": len(subscriptions) if isinstance(subscriptions, list) else subscriptions,
    }
    for key in (*RATES, "waiting_bytes", "dropped"):
        row[key] = sum(one[key] or 0 for one in rows)
    return row
