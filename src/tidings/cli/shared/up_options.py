"""The options of `tidings up`, each said once (cli/shared/option_table.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from tidings.cli.shared.node_options import MAX_DELTA, Algorithm, LayoutOrder, Mode, Transport
from tidings.cli.shared.option_table import Flag, Options

MAX_PORT = 65_535


class UpOptions(Options, frozen=True, kw_only=True):
    """The flags of `tidings up`. Its file says the same in tables of its own (drivers/processes/topology_file.py)."""

    brokers: Annotated[
        Annotated[int, Meta(ge=1)] | None, Flag(help="Without a file: a binary tree of so many. Default: 5.")
    ] = None
    transport: Annotated[Transport | None, Flag(help="Before the file's. Default: tcp.")] = None
    base_port: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_PORT)] | None,
        Flag(help="The first port; before the file's. Default: 7400."),
    ] = None
    mode: Annotated[Mode | None, Flag(help="Before the file's. Default: best-effort.")] = None
    delta: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_DELTA)] | None,
        Flag(help="Guaranteed: failed brokers in a row that are bypassed. Default: 2."),
    ] = None
    data: Annotated[
        Path | None,
        Flag(
            metavar="DIR",
            help="Guaranteed, --order: where brokers and sequencers keep their state. Default: until the end.",
        ),
    ] = None
    recovery: Annotated[
        Algorithm | None,
        Flag(help="Epidemic: how what was lost is recovered; before the file's. Default: auto."),
    ] = None
    loss: Annotated[
        str | None,
        Flag(
            metavar="RATE[:BURST]",
            help="Epidemic, for tests: lose this share of what brokers send to each other; before the file's.",
        ),
    ] = None
    order: Annotated[
        LayoutOrder | None,
        Flag(help="Run sequencers, too: a primary, a standby, a witness. causal is total, too."),
    ] = None
    order_topics: Annotated[
        tuple[str, ...],
        Flag(
            name="--order-topic",
            metavar="PATTERN",
            parse=tuple,
            help="With --order: topics numbered apart, by precedence; may be repeated. Default: /**.",
        ),
    ] = ()
