"""Waits until a broker's archive has everything that a subscription does not get live."""

from __future__ import annotations

import asyncio

from tidings.core.overlay.guaranteed.archive_fence import ArchiveFence
from tidings.core.overlay.guaranteed.broker import GuaranteedBroker

POLL_S = 0.005
"""How often to look, while somebody waits: the recorder writes in batches that take about as long."""


class ArchiveSettling:
    """The `settle` of an ArchiveReadService whose archive this broker records."""

    def __init__(self, node: GuaranteedBroker) -> None:
        self._fence = ArchiveFence(node.name, node.attachments, node.delivery)

    async def __call__(self, client: str, subscription: str) -> None:
        fence = self._fence.raise_for(client, subscription)
        while not self._fence.is_passed(fence):  # noqa: ASYNC110 - the protocol has no asyncio.Event
            await asyncio.sleep(POLL_S)
