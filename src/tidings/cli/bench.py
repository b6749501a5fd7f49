"""`tidings bench`: measures throughput and latency, from `publish` to the subscriber's code.

Publisher, subscribers and each broker are processes on this machine, unless the network is elsewhere.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.shared.exits import ExitCode
from tidings.cli.shared.node_options import MODES, Transport
from tidings.cli.shared.options import (
    Json,
    Quiet,
    TlsAuthority,
    TokenFile,
    make_bus,
    option,
    read_token,
)
from tidings.cli.shared.output import Progress, print_json, print_table, progress_bar
from tidings.core.overlay.modes import BrokerMode

if TYPE_CHECKING:
    from tidings.cli.benchmark.run import Load
    from tidings.drivers.processes.brokers import BrokerNetwork


class BenchOrder(StrEnum):
    NONE = "none"
    TOTAL = "total"


BrokerUrl = Annotated[
    str | None,
    typer.Argument(metavar="[URL]", help="Broker to measure. Default: start a network.", show_default=False),
]
Events = Annotated[int, option("--events", metavar="N", min=1, max=100_000_000, help="Events to publish.")]
Size = Annotated[int, option("--size", metavar="BYTES", min=0, max=1_000_000, help="Payload size.")]
Subscribers = Annotated[
    int, option("--subscribers", metavar="N", min=1, max=1000, help="Subscribers; each gets every event.")
]
Order = Annotated[BenchOrder, option("--order", help="Order of delivery.")]
ModeFlag = Annotated[
    BrokerMode | None, option("--mode", metavar="MODE", help=f"Mode of the network to start: {MODES}.")
]
Brokers = Annotated[
    int | None,
    option("--brokers", metavar="N", min=1, max=200, help="Brokers to start, in a row. Default: 1."),
]
TransportFlag = Annotated[
    Transport | None, option("--transport", help="Transport of the brokers to start. Default: tcp.")
]


def bench(
    url: BrokerUrl = None,
    events: Events = 100_000,
    size: Size = 128,
    subscribers: Subscribers = 1,
    order: Order = BenchOrder.NONE,
    mode: ModeFlag = None,
    brokers: Brokers = None,
    transport: TransportFlag = None,
    token_file: TokenFile = None,
    tls_ca: TlsAuthority = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure throughput, latency and CPU time.

    Measures from the publish call to the code of the subscribers.
    """
    from tidings.cli.benchmark.run import Load
    from tidings.cli.shared.running import run

    started = {"--mode": mode, "--brokers": brokers, "--transport": transport}
    if url is not None:
        for flag, value in started.items():
            if value is not None:
                raise typer.BadParameter("not allowed with a URL", param_hint=flag)
    mode = mode or "best-effort"
    if transport == "udp" and mode != "best-effort":
        raise typer.BadParameter(f"--mode {mode} requires tcp", param_hint="--transport")
    load = Load(events, size, subscribers, order.value)
    with progress_bar("bench", quiet=quiet) as progress:
        if url is not None:
            measured = run(measure_at(url, url, load, token_file, tls_ca, None, progress))
        else:
            started_with = (brokers or 1, mode, transport or "tcp")
            measured = run(measure_own(*started_with, load, progress))
    if json:
        print_json(measured)
    else:
        print_table(title(measured), ("what", "value"), readable(measured))
    if not measured["arrived"]:
        raise typer.Exit(ExitCode.TIMEOUT)


async def measure_own(
    brokers: int, mode: BrokerMode, transport: Transport, load: Load, progress: Progress
) -> dict[str, Any]:
    """Measure a network of our own; the publisher is at its first broker, the subscribers at its last."""
    from tidings.cli.benchmark.network import running_row

    ordered = load.order != "none"
    async with running_row(brokers, mode, transport, ordered=ordered) as network:
        urls = [broker.url for broker in network.brokers.values()]
        measured = await measure_at(urls[0], urls[-1], load, None, None, network, progress)
        return {"mode": mode, "brokers": brokers, **measured}


async def measure_at(
    publisher_url: str,
    subscriber_url: str,
    load: Load,
    token_file: Path | None,
    tls_authority: Path | None,
    network: BrokerNetwork | None,
    progress: Progress,
) -> dict[str, Any]:
    from tidings.cli.benchmark.run import LATENCY_EVENTS, measure, new_topic
    from tidings.cli.benchmark.words import BenchWork

    work = BenchWork(
        url=subscriber_url,
        token=read_token(token_file),
        tls_ca=None if tls_authority is None else str(tls_authority),
        topic=new_topic(),
        order=load.order,
        subscribers=load.subscribers,
        events=(LATENCY_EVENTS, load.events),
    )
    async with make_bus(publisher_url, token_file=token_file, tls_authority=tls_authority) as publisher:
        figures = await measure(publisher, work, load, network, progress)
    asked = {"size_bytes": load.size_bytes, "subscribers": load.subscribers, "order": load.order}
    return {"url": publisher_url, **asked, **figures}


def title(measured: dict[str, Any]) -> str:
    if "mode" not in measured:
        return str(measured["url"])
    count = measured["brokers"]
    return f"{measured['mode']}, {count} broker{'s in a row' if count > 1 else ''}"


def readable(measured: dict[str, Any]) -> list[tuple[str, object]]:
    from tidings.cli.benchmark.run import LATENCY_RATE_HZ

    latency = measured["latency_us"]
    times = "-" if latency is None else " / ".join(f"{latency[key]:,.0f}" for key in ("p50", "p99", "max"))
    return [
        ("events", f"{measured['published']:,} of {measured['size_bytes']} bytes"),
        ("subscribers", measured["subscribers"]),
        ("order", measured["order"]),
        ("published and confirmed", f"{measured['published_per_s']:,} events/s"),
        ("arrived, end to end", f"{measured['arrived_per_s']:,} events/s"),
        ("lost", f"{measured['lost']:,} of {measured['expected']:,}"),
        *(
            (f"CPU per event: {name}", f"{used:,.1f} µs")
            for name, used in measured["cpu_us_per_event"].items()
        ),
        (f"latency at {LATENCY_RATE_HZ:,.0f} events/s", f"{times} µs (p50 / p99 / max)"),
    ]
