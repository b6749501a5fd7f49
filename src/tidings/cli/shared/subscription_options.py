"""Declares the flags of verbs that subscribe or read: which events, in which order, how many, for how long."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer

from tidings.cli.shared.event_printer import PayloadForm
from tidings.cli.shared.options import option

MQTT_WILDCARDS = {"#": "**", "+": "*"}


class OrderName(StrEnum):
    NONE = "none"
    FIFO = "fifo"
    CAUSAL = "causal"
    TOTAL = "total"


Where = Annotated[str | None, option("--where", metavar="SQL", help="Only events that match this filter.")]
OrderFlag = Annotated[OrderName, option("--order", metavar="ORDER", help="none, fifo, causal or total.")]
Count = Annotated[int | None, option("--count", "-n", metavar="N", min=1, help="Exit after N events.")]
Timeout = Annotated[
    float | None,
    option(
        "--timeout",
        metavar="SECONDS",
        min=0.0,
        help="Exit after this time; exits with 3 if fewer than --count events arrived.",
    ),
]
PayloadFlag = Annotated[PayloadForm, option("--payload", help="How to print payloads.")]


def check_patterns(patterns: Iterable[str], hint: str) -> None:
    """Reject MQTT's wildcards: they are ordinary names here, but users who write them mean ours."""
    for pattern in patterns:
        levels = pattern.split("/")
        meant = "/".join(MQTT_WILDCARDS.get(level, level) for level in levels)
        if meant != pattern:
            wildcard = next(level for level in levels if level in MQTT_WILDCARDS)
            reason = f"{pattern!r}: {wildcard!r} is not a wildcard here; write {meant!r}"
            raise typer.BadParameter(reason, param_hint=hint)
