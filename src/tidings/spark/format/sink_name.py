"""The sink's option `durable`: a publishing name that belongs to one query, wherever that query runs.

What a query publishes is known by the query's id, which is in its checkpoint, and the number of the batch. A query that
goes on elsewhere with (a copy of) its checkpoint publishes the same events again, and brokers take them once. Without
the checkpoint Spark makes another query of it, which numbers its batches from 0 and cuts its input anew: nobody could
tell which of its rows were published before. So the name remembers its query, and refuses another one. The id is in
the sources' names in any case: events of two queries are never taken for each other, so none is lost.

The name is a durable subscription to nothing, read by the query (core/overlay/guaranteed/share_reading.py): it has the
properties that are needed here. It is unique in the network, on disk, and reached through any broker.
"""

from __future__ import annotations

import random
import secrets
import time

from tidings.core.errors import BrokerAway, ConnectionFailed, PipelineError, SubscriptionRefused
from tidings.drivers.sockets.dialling import backoff_seconds
from tidings.drivers.sockets.share_client import ShareConnection, ShareUnread
from tidings.spark.format.durable import connect
from tidings.spark.format.options import Location
from tidings.spark.format.sink_publishing import SinkTarget

TOPIC = "/~publisher"
"""Nobody publishes there."""
KEEP_NS = 1_000_000_000 * 1_000_000_000
"""31 years."""
ID_DIGITS = 15
"""Of the query's id, as a number of at most 60 bits."""


def claim_name(target: SinkTarget, name: str, query: str, patience_s: float) -> None:
    """Raise PipelineError unless the name is the query's; it is the first one's who asks."""
    location = Location(0, target.url, True, target.token, target.tls_ca)
    client = f"spark-{name}-{secrets.token_hex(4)}"
    began_at = time.monotonic()
    attempt = 0
    while True:
        try:
            with connect(location, client, target.timeout_s) as share:
                patience_s = target.timeout_s  # the address is right
                _claim(share, name, query)
                return
        except BrokerAway as error:
            if time.monotonic() >= began_at + patience_s:
                raise PipelineError(str(error)) from None
        except ConnectionFailed as error:
            raise PipelineError(str(error)) from None
        except SubscriptionRefused as error:
            # Held: another task of the query creates the name at this moment.
            if "is held by" not in str(error) or time.monotonic() >= began_at + patience_s:
                raise PipelineError(_refusal(name, str(error))) from None
        time.sleep(backoff_seconds(attempt, random.random()))
        attempt += 1


def _claim(share: ShareConnection, name: str, query: str) -> None:
    reading = int(query.replace("-", "")[:ID_DIGITS], 16) + 1
    try:
        for _ in share.read(name, reading, 1, 1):
            return
    except ShareUnread:
        share.attach(name, (TOPIC,), None, reading, resumes=False, takeover=False, keep_for_ns=KEEP_NS)
        share.leave()


def _refusal(name: str, reason: str) -> str:
    if "belongs to another reader" in reason:
        return (
            f"option durable: {name!r} belongs to another query: start that one with its checkpoint, or a copy; "
            "if that is lost, use another name, and expect rows that were published before to be published again"
        )
    if "has topics" in reason or "is a group" in reason or "is held by" in reason:
        return f"option durable: {name!r} is the name of a durable subscription or a group: use another name"
    return f"option durable: {reason}"
