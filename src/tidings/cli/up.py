"""`tidings up`: a network of brokers on this machine, one process each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.exits import report
from tidings.cli.options import Json, TransportName, option
from tidings.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from tidings.cli.processes import BrokerNetwork, BrokerProcess

TopologyPath = Annotated[
    Path | None, typer.Argument(metavar="[TOPOLOGY]", help="A topology file (TOML).", show_default=False)
]
Brokers = Annotated[
    int | None, option("--brokers", min=1, help="Without a file: a binary tree of so many. Default: 5.")
]
Transport = Annotated[TransportName | None, option("--transport", help="Before the file's. Default: tcp.")]
BasePort = Annotated[
    int | None,
    option("--base-port", min=1, max=65_535, help="The first port; before the file's. Default: 7400."),
]


def up(
    topology: TopologyPath = None,
    brokers: Brokers = None,
    transport: Transport = None,
    base_port: BasePort = None,
    json: Json = False,
) -> None:
    """Run a network of brokers as processes of this machine, until Ctrl-C."""
    from tidings.cli.running import Stopped, run

    if topology is not None and brokers is not None:
        raise typer.BadParameter("the topology file says how many", param_hint="--brokers")
    network = make_network(topology, brokers, transport, base_port)
    try:
        run(keep_up(network, as_json=json))
    except Stopped:
        return  # the way in which it is meant to end


def make_network(
    path: Path | None, brokers: int | None, transport: TransportName | None, base_port: int | None
) -> BrokerNetwork:
    import msgspec

    from tidings.cli.processes import BrokerNetwork
    from tidings.cli.topology import DEFAULT_BROKERS, Up, addresses, read_topology_file, tree

    if path is None:
        topology, where = tree(brokers or DEFAULT_BROKERS), Up()
    else:
        topology, where = read_topology_file(path)
    if transport is not None:
        where = msgspec.structs.replace(where, transport=transport.value)
    if base_port is not None:
        where = msgspec.structs.replace(where, base_port=base_port)
    return BrokerNetwork(topology, addresses(topology, where), transport=where.transport)


async def keep_up(network: BrokerNetwork, *, as_json: bool) -> None:
    """Until a signal ends it, or the last broker is gone."""
    from tidings.model.errors import ConnectionFailed

    async with network:
        show(network, as_json=as_json)
        await asyncio.gather(*(watch(broker, as_json=as_json) for broker in network.brokers.values()))
        raise ConnectionFailed("no broker is left")


def show(network: BrokerNetwork, *, as_json: bool) -> None:
    brokers = network.brokers.values()
    if as_json:
        print_json(
            {
                "event": "ready",
                "brokers": [
                    {
                        "broker": broker.name,
                        "url": broker.url,
                        "pid": broker.pid,
                        "neighbours": list(broker.around),
                    }
                    for broker in brokers
                ],
            }
        )
        return
    rows = [(broker.name, broker.url, str(broker.pid), " ".join(broker.around)) for broker in brokers]
    print_table(f"{len(rows)} brokers run", ("broker", "url", "pid", "neighbours"), rows)
    print_line("Ctrl-C ends them all.")


async def watch(broker: BrokerProcess, *, as_json: bool) -> None:
    """Tell when a broker ends; the others go on."""
    await broker.wait()
    last = broker.last_error_line
    if as_json:
        print_json({"event": "ended", "broker": broker.name, "how": broker.ending, "last_line": last})
    else:
        report(f"{broker.name} ended ({broker.ending})" + (f": {last}" if last else ""), as_json=False)
