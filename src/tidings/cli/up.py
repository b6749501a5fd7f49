"""`tidings up`: runs a network of brokers on this machine, one process each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.shared.exits import report
from tidings.cli.shared.option_table import given_flags, verb
from tidings.cli.shared.options import Json, Quiet
from tidings.cli.shared.output import print_json, print_line, print_table
from tidings.cli.shared.subscription_options import check_patterns
from tidings.cli.shared.up_options import UpOptions
from tidings.cli.shared.up_scenario import Check, Out, ScenarioFile, Seed, up_scenario

if TYPE_CHECKING:
    from tidings.core.overlay.epidemic.settings import RecoverySettings
    from tidings.drivers.address import Address
    from tidings.drivers.processes.brokers import BrokerArchive, BrokerNetwork, BrokerProcess
    from tidings.drivers.processes.sequencers import SequencerProcess, SequencerProcesses
    from tidings.drivers.processes.topology_file import TopologyFile, Up
    from tidings.scenarios.file.schema import Mode

TopologyPath = Annotated[
    Path | None,
    typer.Argument(metavar="[TOPOLOGY]", help="Topology file (TOML); - is stdin.", show_default=False),
]


def run_up(
    options: UpOptions,
    topology: TopologyPath = None,
    scenario: ScenarioFile = None,
    out: Out = None,
    seed: Seed = None,
    check: Check = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a network of brokers, or a scenario, on this machine.

    Each broker is a process. The network runs until Ctrl-C, a scenario to its end.
    """
    from tidings.cli.shared.running import Stopped, run

    if scenario is not None or out is not None or seed is not None or check:
        for flag in [*([] if topology is None else ["TOPOLOGY"]), *given_flags(options)]:
            raise typer.BadParameter("not allowed with --scenario", param_hint=flag)
        up_scenario(scenario, out, seed, check=check, as_json=json, quiet=quiet)
        return
    if topology is not None and options.brokers is not None:
        raise typer.BadParameter("not allowed with a topology file", param_hint="--brokers")
    network = make_network(options, topology)
    try:
        run(keep_up(network, as_json=json))
    except Stopped:
        return  # the normal end


up = verb("up", UpOptions, run_up)


def make_network(options: UpOptions, path: Path | None = None) -> BrokerNetwork:
    import msgspec

    from tidings.cli.shared.loss import parse_loss
    from tidings.drivers.processes.brokers import BrokerNetwork
    from tidings.drivers.processes.topology_file import (
        DEFAULT_BROKERS,
        TopologyFile,
        addresses,
        read_network_file,
        tree,
    )
    from tidings.drivers.sockets.guaranteed import DEFAULT_WINDOW
    from tidings.scenarios.file.schema import Overlay

    if path is None:
        file = TopologyFile(overlay=Overlay(mode=options.mode or "best-effort", window=DEFAULT_WINDOW))
        topology = tree(options.brokers or DEFAULT_BROKERS)
    else:
        topology, file = read_network_file(path, options.mode)
    where = file.up
    if options.transport is not None:
        where = msgspec.structs.replace(where, transport=options.transport)
    if options.base_port is not None:
        where = msgspec.structs.replace(where, base_port=options.base_port)
    if file.overlay.mode != "best-effort" and where.transport != "tcp":
        raise typer.BadParameter(f"--mode {file.overlay.mode} requires tcp", param_hint="--transport")
    loss = file.up.loss if options.loss is None else options.loss
    check_mode(file, options, loss)
    overlay = file.overlay
    if options.delta is not None:
        overlay = msgspec.structs.replace(overlay, delta=options.delta)
    listening = addresses(topology, where)
    return BrokerNetwork(
        topology,
        listening,
        overlay,
        recovery_of(file, options),
        data=options.data,
        loss=None if loss is None else parse_loss(str(loss)),
        transport=where.transport,
        ordering=make_sequencers(overlay.mode, where, options, listening),
        archives=make_archives(options, listening),
    )


def make_archives(options: UpOptions, brokers: Iterable[str]) -> dict[str, BrokerArchive]:
    """Return where each broker records events; empty if none does."""
    from tidings.cli.shared.broker_settings import kept_archive
    from tidings.cli.shared.retention import archive_settings
    from tidings.drivers.processes.brokers import BrokerArchive
    from tidings.drivers.sockets.guaranteed import file_name

    kept = kept_archive(options)
    if kept is None:
        return {}
    archive_settings(kept.size, kept.age)  # a mistake is told before anything starts
    return {
        name: BrokerArchive(kept.directory / file_name(name), kept.topics, kept.size, kept.age)
        for name in brokers
    }


def check_mode(file: TopologyFile, options: UpOptions, loss: str | float | None) -> None:
    """Reject options that the network's mode does not use."""
    mode, ordered = file.overlay.mode, options.order is not None or file.up.order is not None
    if options.delta is not None and mode != "guaranteed":
        raise typer.BadParameter("requires --mode guaranteed", param_hint="--delta")
    if options.data is not None and mode != "guaranteed" and not ordered:
        raise typer.BadParameter("requires --mode guaranteed or --order", param_hint="--data")
    for flag, value in (("--recovery", options.recovery or file.recovery), ("--loss", loss)):
        if value is not None and mode != "epidemic":
            raise typer.BadParameter("requires --mode epidemic", param_hint=flag)


def make_sequencers(
    mode: Mode, where: Up, options: UpOptions, brokers: Mapping[str, Address]
) -> SequencerProcesses | None:
    """Return the sequencers; None if no order is requested."""
    from tidings.core.errors import OrderError
    from tidings.drivers.address import url
    from tidings.drivers.processes.sequencers import NODES, SequencerProcesses, three_nodes
    from tidings.drivers.processes.topology_file import addresses_from

    order = options.order or where.order
    topics = options.order_topics or where.order_topics
    if order is None:
        if topics:
            raise typer.BadParameter("requires --order", param_hint="--order-topic")
        return None
    if order == "total" and mode != "guaranteed":
        reason = f"total requires --mode guaranteed, as {mode} may lose events; causal includes total order"
        raise typer.BadParameter(reason, param_hint="--order")
    check_patterns(topics, "--order-topic")
    try:
        layout = three_nodes(topics, causal=order == "causal")
    except OrderError as error:
        raise typer.BadParameter(str(error), param_hint="--order-topic") from None
    return SequencerProcesses(
        layout,
        addresses_from(where.host, where.base_port + len(brokers), NODES),
        [url(address, where.transport) for address in brokers.values()],
        None if options.data is None else options.data / "order",
    )


def recovery_of(file: TopologyFile, options: UpOptions) -> RecoverySettings:
    """Return the file's table; the flag overrides its algorithm."""
    from msgspec.structs import replace

    from tidings.core.overlay.epidemic.settings import RecoverySettings

    settings = RecoverySettings()
    if file.recovery is not None:
        from tidings.scenarios.file.brokers import recovery_settings

        settings = recovery_settings(file.recovery)
    return settings if options.recovery is None else replace(settings, algorithm=options.recovery)


async def keep_up(network: BrokerNetwork, *, as_json: bool) -> None:
    """Run until a signal arrives or the last broker has ended."""
    from tidings.core.errors import ConnectionFailed

    async with network:
        show(network, as_json=as_json)
        others = [asyncio.create_task(watch(process, as_json=as_json)) for process in sequencers_of(network)]
        try:
            await asyncio.gather(*(watch(broker, as_json=as_json) for broker in network.brokers.values()))
        finally:
            for task in others:
                task.cancel()
        raise ConnectionFailed("all brokers have ended")


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
                    **({} if broker.archive is None else {"archive": str(broker.archive.directory)}),
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
    print_table(f"{len(rows)} brokers", ("broker", "url", "pid", "neighbours"), rows)
    if sequencers:
        nodes = [(process.name, process.url, str(process.pid)) for process in sequencers]
        print_table(f"{len(nodes)} sequencers", ("sequencer", "url", "pid"), nodes)
    print_line("Try it in other terminals:")
    for command in commands(network):
        print_line(f"  {command}")
    print_line("Press Ctrl-C to stop.")


def commands(network: BrokerNetwork) -> Iterator[str]:
    """Yield what to type next."""
    brokers = list(network.brokers.values())
    first, last = brokers[0], brokers[-1]
    order = ""
    if network.ordering is not None:
        order = f" --order {'causal' if network.ordering.layout.causal else 'total'}"
    yield f"tidings sub {last.url} '/news/**'{order}"
    yield f"tidings pub {first.url} /news/bbc 'Hello, world'"
    if last.archive is not None:
        topics = " ".join(f"'{topic}'" for topic in last.archive.topics or ("/**",))
        if last.spec.mode == "guaranteed":
            yield f"tidings sub {last.url} {topics} --start earliest"
        else:
            yield f"tidings get {last.url} --follow"
        yield f"tidings last {last.url}"


async def watch(process: BrokerProcess | SequencerProcess, *, as_json: bool) -> None:
    """Report when a broker or a sequencer ends; the others continue."""
    from tidings.drivers.processes.brokers import BrokerProcess

    await process.wait()
    last = process.last_error_line
    kind = "broker" if isinstance(process, BrokerProcess) else "sequencer"
    if as_json:
        print_json({"event": "ended", kind: process.name, "how": process.ending, "last_line": last})
    else:
        report(f"{process.name} ended ({process.ending})" + (f": {last}" if last else ""), as_json=False)
