"""Checks subscribers that start with history: what has it, and what one archive per broker can serve."""

from __future__ import annotations

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.archives import EARLIEST, archive_order
from tidings.scenarios.file.ordering import ORDERS
from tidings.scenarios.file.schema import Order, Scenario


def check_starts(scenario: Scenario) -> None:
    """Check all subscribers; their topics, orders and shares are checked before."""
    orders: dict[str, tuple[str, Order]] = {}
    for index, subscriber in enumerate(scenario.subscribers):
        if subscriber.start != EARLIEST:
            continue
        path = f"subscriber[{index}]"
        mode = scenario.overlay.mode
        if mode != "guaranteed":
            raise ScenarioError(f'{path}.start: "earliest" needs overlay.mode "guaranteed", not "{mode}"')
        if subscriber.durable is not None and subscriber.order in ORDERS:
            raise ScenarioError(
                f'{path}.start: "earliest" is not available with durable and order "{subscriber.order}"; use "fifo"'
            )
        if subscriber.changes:
            raise ScenarioError(
                f'{path}.changes: not allowed with start = "earliest"; list another subscriber for other topics'
            )
        order = archive_order(subscriber.order)
        where, other = orders.setdefault(subscriber.at, (path, order))
        if order != other:
            raise ScenarioError(
                f"{path}.order: the archive of '{subscriber.at}' has one order: '{subscriber.order}' needs "
                f"'{order}', and {where} needs '{other}'; use another broker for one of them"
            )
