"""`tidings up`: a network of brokers on this machine, one process each."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tidings.cli.exits import report
from tidings.cli.options import Json, ModeName, Quiet, RecoveryName, TransportName, option
from tidings.cli.output import print_json, print_line, print_table
from tidings.cli.up_scenario import Check, Out, ScenarioFile, Seed, up_scenario

if TYPE_CHECKING:
    from tidings.cli.processes import BrokerNetwork, BrokerProcess, EpidemicNetwork, GuaranteedNetwork
    from tidings.cli.topology import TopologyFile
    from tidings.protocol.recovery.settings import RecoverySettings
    from tidings.scenario.schema import Mode, Overlay

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
        "--data", metavar="DIR", help="Guaranteed: where brokers keep their state. Default: until the end."
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
        }
        for flag, value in given.items():
            if value is not None:
                raise typer.BadParameter("a scenario says that itself, or has none", param_hint=flag)
        up_scenario(scenario, out, seed, check=check, as_json=json, quiet=quiet)
        return
    if topology is not None and brokers is not None:
        raise typer.BadParameter("the topology file says how many", param_hint="--brokers")
    where = Where(topology, brokers, transport, base_port, mode, delta, data, recovery, loss)
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
    return BrokerNetwork(
        topology,
        addresses(topology, where),
        transport=where.transport,
        guaranteed=guaranteed_network(file.overlay, flags),
        epidemic=epidemic_network(file, flags),
    )


def guaranteed_network(overlay: Overlay, flags: Where) -> GuaranteedNetwork | None:
    """What its brokers share; None if the network is of another mode."""
    from tidings.cli.processes import GuaranteedNetwork

    if overlay.mode != "guaranteed":
        for flag, value in (("--delta", flags.delta), ("--data", flags.data)):
            if value is not None:
                raise typer.BadParameter("it is for --mode guaranteed", param_hint=flag)
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
