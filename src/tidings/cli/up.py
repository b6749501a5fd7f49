"""`tidings up`: a network of brokers on this machine, one process each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tidings.cli.exits import report
from tidings.cli.options import Json, LayoutOrder, ModeName, Quiet, RecoveryName, TransportName, option
from tidings.cli.output import print_json, print_line, print_table
from tidings.cli.up_scenario import Check, Out, ScenarioFile, Seed, up_scenario

if TYPE_CHECKING:
    from tidings.cli.processes import BrokerNetwork, BrokerProcess, EpidemicNetwork, GuaranteedNetwork
    from tidings.cli.sequencer_processes import SequencerProcess, SequencerProcesses
    from tidings.cli.topology import TopologyFile, Up
    from tidings.net.address import Address
    from tidings.protocol.recovery.settings import RecoverySettings
    from tidings.scenario.schema import Mode

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

UpMode = Annotated[ModeName | None, option("--mode", help="Before the file's. Default: best-effort.")]
Delta = Annotated[
    int | None,
    option(
        "--delta", min=0, max=32, help="Guaranteed: failed brokers in a row that are bypassed. Default: 2."
    ),
]
Data = Annotated[
    Path | None,
    option(
        "--data",
        metavar="DIR",
        help="Guaranteed, --order: where brokers and sequencers keep their state. Default: until the end.",
    ),
]

Recovery = Annotated[
    RecoveryName | None,
    option("--recovery", help="Epidemic: how what was lost is recovered; before the file's. Default: auto."),
]
LossText = Annotated[
    str | None,
    option(
        "--loss",
        metavar="RATE[:BURST]",
        help="Epidemic, for tests: lose this share of what brokers send to each other; before the file's.",
    ),
]
Order = Annotated[
    LayoutOrder | None,
    option("--order", help="Run sequencers, too: a primary, a standby, a witness. causal is total, too."),
]
OrderTopics = Annotated[
    list[str] | None,
    option(
        "--order-topic",
        metavar="PATTERN",
        help="With --order: topics numbered apart, by precedence; may be repeated. Default: /**.",
    ),
]


def up(
    topology: TopologyPath = None,
    brokers: Brokers = None,
    transport: Transport = None,
    base_port: BasePort = None,
    mode: UpMode = None,
    delta: Delta = None,
    data: Data = None,
    recovery: Recovery = None,
    loss: LossText = None,
    order: Order = None,
    order_topic: OrderTopics = None,
    scenario: ScenarioFile = None,
    out: Out = None,
    seed: Seed = None,
    check: Check = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a network of brokers as processes of this machine, until Ctrl-C; or a whole scenario, to its end."""
    from tidings.cli.running import Stopped, run

    if scenario is not None or out is not None or seed is not None or check:
        given = {
            "TOPOLOGY": topology,
            "--brokers": brokers,
            "--transport": transport,
            "--base-port": base_port,
            "--mode": mode,
            "--delta": delta,
            "--data": data,
            "--recovery": recovery,
            "--loss": loss,
            "--order": order,
            "--order-topic": order_topic,
        }
        for flag, value in given.items():
            if value is not None:
                raise typer.BadParameter("a scenario says that itself, or has none", param_hint=flag)
        up_scenario(scenario, out, seed, check=check, as_json=json, quiet=quiet)
        return
    if topology is not None and brokers is not None:
        raise typer.BadParameter("the topology file says how many", param_hint="--brokers")
    where = Where(
        topology, brokers, transport, base_port, mode, delta, data, recovery, loss, order, order_topic
    )
    network = make_network(where)
    try:
        run(keep_up(network, as_json=json))
    except Stopped:
        return  # the way in which it is meant to end


class Where(NamedTuple):
    """The flags of `up`, None where not given."""

    topology: Path | None
    brokers: int | None
    transport: TransportName | None
    base_port: int | None
    mode: ModeName | None
    delta: int | None
    data: Path | None
    recovery: RecoveryName | None = None
    loss: str | None = None
    order: LayoutOrder | None = None
    order_topics: list[str] | None = None


def make_network(flags: Where) -> BrokerNetwork:
    import msgspec

    from tidings.cli.processes import BrokerNetwork
    from tidings.cli.topology import DEFAULT_BROKERS, TopologyFile, addresses, read_network_file, tree
    from tidings.net.guaranteed import DEFAULT_WINDOW
    from tidings.scenario.schema import Overlay

    mode: Mode | None = None if flags.mode is None else flags.mode.value
    if flags.topology is None:
        file = TopologyFile(overlay=Overlay(mode=mode or "best-effort", window=DEFAULT_WINDOW))
        topology = tree(flags.brokers or DEFAULT_BROKERS)
    else:
        topology, file = read_network_file(flags.topology, mode)
    where = file.up
    if flags.transport is not None:
        where = msgspec.structs.replace(where, transport=flags.transport.value)
    if flags.base_port is not None:
        where = msgspec.structs.replace(where, base_port=flags.base_port)
    if file.overlay.mode != "best-effort" and where.transport != "tcp":
        raise typer.BadParameter(f"mode {file.overlay.mode} needs tcp", param_hint="--transport")
    guaranteed = guaranteed_network(file, flags)
    epidemic = epidemic_network(file, flags)
    listening = addresses(topology, where)
    return BrokerNetwork(
        topology,
        listening,
        transport=where.transport,
        guaranteed=guaranteed,
        epidemic=epidemic,
        ordering=make_sequencers(file.overlay.mode, where, flags, listening),
    )


def make_sequencers(
    mode: Mode, where: Up, flags: Where, brokers: Mapping[str, Address]
) -> SequencerProcesses | None:
    """None: nobody asks for an order."""
    from tidings.cli.sequencer_processes import NODES, SequencerProcesses, three_nodes
    from tidings.cli.topology import addresses_from
    from tidings.model.errors import OrderError
    from tidings.net.address import url

    order = flags.order or (None if where.order is None else LayoutOrder(where.order))
    topics = flags.order_topics or where.order_topics
    if order is None:
        if topics:
            raise typer.BadParameter("it is for --order", param_hint="--order-topic")
        return None
    if order is LayoutOrder.TOTAL and mode != "guaranteed":
        reason = f"in mode {mode} events may get lost: that needs causal, which is total, too"
        raise typer.BadParameter(reason, param_hint="--order")
    try:
        layout = three_nodes(topics, causal=order is LayoutOrder.CAUSAL)
    except OrderError as error:
        raise typer.BadParameter(str(error), param_hint="--order-topic") from None
    return SequencerProcesses(
        layout,
        addresses_from(where.host, where.base_port + len(brokers), NODES),
        [url(address, where.transport) for address in brokers.values()],
        None if flags.data is None else flags.data / "order",
    )


def guaranteed_network(file: TopologyFile, flags: Where) -> GuaranteedNetwork | None:
    """What its brokers share; None if the network is of another mode."""
    from tidings.cli.processes import GuaranteedNetwork

    overlay = file.overlay
    if overlay.mode != "guaranteed":
        if flags.delta is not None:
            raise typer.BadParameter("it is for --mode guaranteed", param_hint="--delta")
        if flags.data is not None and flags.order is None and file.up.order is None:
            raise typer.BadParameter("it is for --mode guaranteed, or for --order", param_hint="--data")
        return None
    delta = overlay.delta if flags.delta is None else flags.delta
    return GuaranteedNetwork(delta, overlay.window, flags.data)


def epidemic_network(file: TopologyFile, flags: Where) -> EpidemicNetwork | None:
    """What its brokers share; None if the network is of another mode."""
    from tidings.cli.loss import parse_loss
    from tidings.cli.processes import EpidemicNetwork

    loss = file.up.loss if flags.loss is None else flags.loss
    if file.overlay.mode != "epidemic":
        for flag, value in (("--recovery", flags.recovery or file.recovery), ("--loss", loss)):
            if value is not None:
                raise typer.BadParameter("it is for --mode epidemic", param_hint=flag)
        return None
    return EpidemicNetwork(recovery_of(file, flags), None if loss is None else parse_loss(str(loss)))


def recovery_of(file: TopologyFile, flags: Where) -> RecoverySettings:
    """The file's table; the flag goes before its algorithm."""
    from msgspec.structs import replace

    from tidings.protocol.recovery.settings import RecoverySettings

    settings = RecoverySettings()
    if file.recovery is not None:
        from tidings.simulator.run import recovery_settings

        settings = recovery_settings(file.recovery)
    return settings if flags.recovery is None else replace(settings, algorithm=flags.recovery.value)


async def keep_up(network: BrokerNetwork, *, as_json: bool) -> None:
    """Until a signal ends it, or the last broker is gone."""
    from tidings.model.errors import ConnectionFailed

    async with network:
        show(network, as_json=as_json)
        others = [asyncio.create_task(watch(process, as_json=as_json)) for process in sequencers_of(network)]
        try:
            await asyncio.gather(*(watch(broker, as_json=as_json) for broker in network.brokers.values()))
        finally:
            for task in others:
                task.cancel()
        raise ConnectionFailed("no broker is left")


def sequencers_of(network: BrokerNetwork) -> list[SequencerProcess]:
    return [] if network.ordering is None else list(network.ordering.processes.values())


def show(network: BrokerNetwork, *, as_json: bool) -> None:
    sequencers = sequencers_of(network)
    brokers = network.brokers.values()
    if as_json:
        ready: dict[str, object] = {
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
        if sequencers:
            ready["sequencers"] = [
                {"sequencer": process.name, "url": process.url, "pid": process.pid} for process in sequencers
            ]
        print_json(ready)
        return
    rows = [(broker.name, broker.url, str(broker.pid), " ".join(broker.around)) for broker in brokers]
    print_table(f"{len(rows)} brokers run", ("broker", "url", "pid", "neighbours"), rows)
    if sequencers:
        nodes = [(process.name, process.url, str(process.pid)) for process in sequencers]
        print_table(f"{len(nodes)} sequencers run", ("sequencer", "url", "pid"), nodes)
    print_line("Ctrl-C ends them all.")


async def watch(process: BrokerProcess | SequencerProcess, *, as_json: bool) -> None:
    """Tell when a broker or a sequencer ends; the others go on."""
    from tidings.cli.processes import BrokerProcess

    await process.wait()
    last = process.last_error_line
    kind = "broker" if isinstance(process, BrokerProcess) else "sequencer"
    if as_json:
        print_json({"event": "ended", kind: process.name, "how": process.ending, "last_line": last})
    else:
        report(f"{process.name} ended ({process.ending})" + (f": {last}" if last else ""), as_json=False)
