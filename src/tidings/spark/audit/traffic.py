"""What an audit takes from the small tables: how much was sent, and which nodes were killed."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow.compute as pc

from tidings.spark.audit.files import TraceFiles, read_table

CLIENTS = ("publisher", "subscriber", "client")


class TrafficSums(msgspec.Struct, frozen=True):
    """Totals of the whole run. `overhead` is messages of any kind between brokers per event; None without events."""

    messages: int
    bytes: int
    dropped: int
    between_brokers: int
    overhead: float | None
    kinds: dict[str, int]
    """Messages between brokers by kind, the most frequent first."""


def sum_traffic(files: TraceFiles, published: int) -> TrafficSums:
    traffic, nodes = read_table(files, "traffic"), read_table(files, "nodes")
    brokers = nodes.filter(pc.equal(nodes["kind"], "broker"))["node"].combine_chunks()
    inside = traffic.filter(
        pc.and_(pc.is_in(traffic["from"], value_set=brokers), pc.is_in(traffic["to"], value_set=brokers))
    )
    kinds = inside.group_by("kind").aggregate([("messages", "sum")])
    by_kind = dict(zip(kinds["kind"].to_pylist(), kinds["messages_sum"].to_pylist(), strict=True))
    between = sum(by_kind.values())
    messages, size_bytes, dropped = (
        int(np.sum(traffic[name].to_numpy())) for name in ("messages", "bytes", "dropped")
    )
    return TrafficSums(
        messages,
        size_bytes,
        dropped,
        between,
        between / published if published else None,
        dict(sorted(by_kind.items(), key=lambda item: (-item[1], item[0]))),
    )


def only_clients_crash(files: TraceFiles) -> bool:
    """Return whether nothing failed but clients that crashed."""
    nodes = read_table(files, "nodes")
    rows = zip(nodes["node"].to_pylist(), nodes["kind"].to_pylist(), strict=True)
    clients = {name for name, kind in rows if kind in CLIENTS}
    kinds = {*read_table(files, "faults")["kind"].to_pylist()}
    return kinds <= {"crash"} and crashed_nodes(files) <= clients


def crashed_nodes(files: TraceFiles) -> frozenset[str]:
    faults = read_table(files, "faults")
    rows = zip(faults["kind"].to_pylist(), faults["target"].to_pylist(), strict=True)
    return frozenset(name for kind, target in rows if kind == "crash" for name in target.split(","))
