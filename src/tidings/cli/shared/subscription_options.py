"""Flags of the verbs that subscribe or read: which events, in which order, how many, for how long."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from tidings.cli.shared.event_printer import PayloadForm
from tidings.cli.shared.options import option


class OrderName(StrEnum):
    NONE = "none"
    FIFO = "fifo"
    CAUSAL = "causal"
    TOTAL = "total"


Where = Annotated[str | None, option("--where", metavar="SQL", help="Only events for which this is true.")]
OrderFlag = Annotated[OrderName, option("--order", help="The order in which events are shown.")]
Count = Annotated[int | None, option("--count", "-n", min=1, help="End after so many events.")]
Timeout = Annotated[
    float | None,
    option("--timeout", min=0.0, help="End after so many seconds; exit code 3 if too little came."),
]
PayloadFlag = Annotated[PayloadForm, option("--payload", help="How payloads are shown.")]
