"""Declares the flags of `tidings sub` for durable subscriptions and groups."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidings.cli.shared.options import option
from tidings.cli.shared.retention import SECONDS, parse_quantity

MAX_KEEP_S = 1_000_000_000
PANEL = "Durable subscriptions and groups"

Durable = Annotated[
    str | None,
    option(
        "--durable",
        metavar="NAME",
        rich_help_panel=PANEL,
        help="Go on where the last reader of this name stopped; the network keeps events meanwhile.",
    ),
]
Group = Annotated[
    str | None,
    option(
        "--group",
        metavar="NAME",
        rich_help_panel=PANEL,
        help="Share the events with the group's other members: each goes to one of them.",
    ),
]
GroupBy = Annotated[
    str | None,
    option(
        "--group-by",
        metavar="ATTRIBUTE",
        rich_help_panel=PANEL,
        help="Send events with equal values of this attribute to one member, in order.",
    ),
]
Takeover = Annotated[
    bool,
    option("--takeover", rich_help_panel=PANEL, help="Take --durable over from whoever is attached."),
]
KeepFor = Annotated[
    str | None,
    option(
        "--keep-for",
        metavar="TIME",
        rich_help_panel=PANEL,
        help="Keep it this long while nobody is attached, such as 12h. Default: 7d.",
    ),
]
MaxUnacked = Annotated[
    int | None,
    option(
        "--max-unacked",
        metavar="N",
        min=1,
        max=1_000_000,
        rich_help_panel=PANEL,
        help="Events that may be out at once. Default: 1024.",
    ),
]
MaxDeliveries = Annotated[
    int | None,
    option(
        "--max-deliveries",
        metavar="N",
        min=1,
        rich_help_panel=PANEL,
        help="Give an event up after N deliveries. Default: never.",
    ),
]
DeadLetter = Annotated[
    str | None,
    option(
        "--dead-letter",
        metavar="TOPIC",
        rich_help_panel=PANEL,
        help="Publish events that are given up here (see tidings dead).",
    ),
]


def durable_arguments(
    durable: str | None,
    group: str | None,
    group_by: str | None,
    takeover: bool,
    keep_for: str | None,
    max_unacked: int | None,
    max_deliveries: int | None,
    dead_letter: str | None,
) -> dict[str, Any]:
    """Return the arguments of `subscribe`; empty if the subscription is neither durable nor a group."""
    if durable is not None and group is not None:
        raise typer.BadParameter(
            "not allowed with --durable: a group is durable already", param_hint="--group"
        )
    options = {
        "--keep-for": keep_for,
        "--max-unacked": max_unacked,
        "--max-deliveries": max_deliveries,
        "--dead-letter": dead_letter,
    }
    for flag, value, other, needed in (
        ("--group-by", group_by, group, "--group"),
        ("--takeover", takeover or None, durable, "--durable"),
        ("--dead-letter", dead_letter, max_deliveries, "--max-deliveries"),
    ):
        if value is not None and other is None:
            raise typer.BadParameter(f"requires {needed}", param_hint=flag)
    for flag, option_value in options.items():
        if option_value is not None and durable is None and group is None:
            raise typer.BadParameter("requires --durable or --group", param_hint=flag)
    if durable is None and group is None:
        return {}
    given: dict[str, Any] = {
        "durable": durable,
        "group": group,
        "group_by": group_by,
        "takeover": takeover,
        "max_unacked": max_unacked,
        "max_deliveries": max_deliveries,
        "dead_letter": dead_letter,
        "keep_for": None if keep_for is None else parse_keep(keep_for),
    }
    return {key: value for key, value in given.items() if value is not None}


def parse_keep(text: str) -> float:
    """Return how long to keep a subscription, in seconds."""
    seconds = parse_quantity(text, SECONDS, "--keep-for", "12h or 7d")
    if seconds > MAX_KEEP_S:
        raise typer.BadParameter(f"at most {MAX_KEEP_S // 86_400}d, not {text!r}", param_hint="--keep-for")
    return seconds
