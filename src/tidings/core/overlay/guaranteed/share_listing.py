"""Lists the durable subscriptions and groups of the network to clients, page by page."""

from __future__ import annotations

from heapq import nsmallest

from msgspec import json

from tidings.core.kernel import Part, Port
from tidings.core.overlay.guaranteed.share_messages import (
    MAX_LISTED,
    MAX_LISTED_BYTES,
    ShareList,
    ShareListRequest,
)
from tidings.core.overlay.guaranteed.shares import Shares


class ShareListing(Part):
    name = "share_listing"
    handles = {ShareListRequest: "on_share_list_request"}

    def __init__(self, port: Port, shares: Shares) -> None:
        super().__init__(port)
        self._shares = shares

    def on_share_list_request(self, sender: str, message: ShareListRequest) -> None:
        page = nsmallest(MAX_LISTED + 1, (name for name in self._shares.names if name > message.after))
        rows: list[bytes] = []
        for name in page[:MAX_LISTED]:
            if sum(map(len, rows)) < MAX_LISTED_BYTES:
                rows.append(json.encode(self._shares.row(name)))
        text = f"[{b','.join(rows).decode()}]"
        self.port.send(sender, ShareList(text, len(page) > len(rows)))
