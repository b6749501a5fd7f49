"""`tidings top`: shows the traffic of brokers and sessions, refreshed every few seconds."""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.options import ConnectTimeout, Json, TlsAuthority, TokenFile, make_bus, option
from tidings.cli.shared.output import discard_output, make_tables, print_json, print_line, table_text
from tidings.cli.shared.top_rates import RATES, Look, TopRows, rates

if TYPE_CHECKING:
    from pathlib import Path

    from rich.live import Live
    from rich.table import Table

    from tidings.bus.host import ApplicationHost

Urls = Annotated[
    list[str],
    typer.Argument(
        metavar="[URL...]", help="Brokers or sequencers: tidings://HOST:PORT.", show_default=False
    ),
]
Interval = Annotated[
    float,
    option("--interval", "-i", metavar="SECONDS", min=0.1, max=3600.0, help="Time between two tables."),
]
Count = Annotated[int | None, option("--count", "-n", metavar="N", min=1, help="Exit after N tables.")]
Sessions = Annotated[
    int,
    option("--sessions", metavar="N", min=0, max=10_000, help="Show the N busiest sessions; 0 shows none."),
]
SERVER_COLUMNS = {
    "server": "server",
    "state": "state",
    "mode": "mode",
    "clients": "clients",
    "subscriptions": "subscriptions",
}
TRAFFIC_COLUMNS = {
    **dict(zip(RATES, ("events in/s", "events out/s", "bytes in/s", "bytes out/s"), strict=True)),
    "waiting_bytes": "bytes waiting",
    "dropped": "dropped",
}
SESSION_COLUMNS = {"server": "server", "peer": "peer", "role": "role", "address": "address"}


def top(
    urls: Urls,
    interval: Interval = 2.0,
    count: Count = None,
    sessions: Sessions = 20,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    connect_timeout: ConnectTimeout = 5.0,
    json: Json = False,
) -> None:
    """Show the traffic of brokers, live.

    Runs until Ctrl-C or --count.
    """
    from tidings.cli.shared.running import Stopped, run

    watched = [Watched(url, token_file, tls_ca, connect_timeout) for url in dict.fromkeys(urls)]
    screen = Screen(sessions, as_json=json)
    try:
        run(watch(watched, screen, interval, count))
    except Stopped:
        return  # the user stopped it
    except BrokenPipeError:
        discard_output()


async def watch(watched: list[Watched], screen: Screen, interval_s: float, count: int | None) -> None:
    try:
        before = await look(watched)
        if all(isinstance(status, str) for status in before.seen.values()):
            raise watched[0].error  # a server that was never up is an error; one that goes away is shown
        with screen:
            shown = 0
            while shown != count:
                await asyncio.sleep(interval_s)
                after = await look(watched)
                screen.show(rates(before, after, [one.name for one in watched]))
                before = after
                shown += 1
    finally:
        await asyncio.gather(*(one.close() for one in watched))


async def look(watched: list[Watched]) -> Look:
    found = await asyncio.gather(*(one.status() for one in watched))
    return Look(time.monotonic(), {one.url: status for one, status in zip(watched, found, strict=True)})


class Watched:
    """Asks a server for its status again and again, over one connection while it lasts."""

    def __init__(
        self, url: str, token_file: Path | None, tls_authority: Path | None, timeout_s: float
    ) -> None:
        from tidings.bus.overlay import SCHEMES, client_name
        from tidings.core.errors import TidingsError

        self.url = url
        self.name = client_name()
        self.error: Exception = TidingsError("never asked")
        self._failures = (TidingsError, TimeoutError)
        self._timeout_s = timeout_s
        self._make = partial(
            make_bus,
            url,
            name=self.name,
            token_file=token_file,
            tls_authority=tls_authority,
            timeout_s=timeout_s,
        )
        self._bus: ApplicationHost | None = None
        self._make()  # report a malformed URL before anything starts
        if url.partition("://")[0] not in SCHEMES:
            reason = f"shows tidings' own brokers and sequencers only, not {url}"
            raise typer.BadParameter(reason, param_hint="URL")

    async def status(self) -> dict[str, Any] | str:
        """Return the server's status, or why there is none."""
        try:
            async with asyncio.timeout(2 * self._timeout_s):
                if self._bus is None:
                    bus = self._make()
                    await bus.without_order().open()  # the broker answers even if its sequencers do not
                    self._bus = bus
                return await self._bus.status()
        except self._failures as error:
            self.error = error
            await self.close()
            return str(error) or f"no answer within {2 * self._timeout_s:g} s"

    async def close(self) -> None:
        bus, self._bus = self._bus, None
        if bus is not None:
            await bus.close()


class Screen:
    """Shows tables: on a terminal each replaces the last, elsewhere they follow each other."""

    def __init__(self, sessions: int, *, as_json: bool) -> None:
        self._sessions = sessions
        self._as_json = as_json
        self._live: Live | None = None

    def __enter__(self) -> None:
        if sys.stdout.isatty() and not self._as_json:
            from rich.live import Live

            self._live = Live(auto_refresh=False, screen=False)
            self._live.start()

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, shown: TopRows) -> None:
        sessions = shown.sessions[: self._sessions]
        if self._as_json:
            print_json({"at": time.time(), "servers": shown.servers, "sessions": sessions})
            return
        tables = _tables("servers", SERVER_COLUMNS, shown.servers, keys=1)
        if sessions:
            tables += _tables("sessions", SESSION_COLUMNS, sessions, keys=2)
        if self._live is None:
            print_line("\n".join([time.strftime("%H:%M:%S"), *map(table_text, tables)]))
        else:
            from rich.console import Group

            self._live.update(Group(*tables), refresh=True)


def _tables(title: str, first: dict[str, str], rows: list[dict[str, Any]], *, keys: int) -> list[Table]:
    columns = {**first, **TRAFFIC_COLUMNS}
    cells = [[_cell(row.get(key)) for key in columns] for row in rows]
    return make_tables(title, list(columns.values()), cells, keys=keys)


def _cell(value: object) -> object:
    return round(value) if isinstance(value, float) else value
