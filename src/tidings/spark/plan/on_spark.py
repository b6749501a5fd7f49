"""Counts subscriptions on Spark: each partition multiplies its clients, and the products are added stripe by stripe.

A product is as large as the square of the topics, however many clients there are. It is sent as stripes of rows, so
that the products of many partitions are never in one place together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.core.errors import PipelineError, TopicError
from tidings.core.events.topics import TopicPattern
from tidings.core.ordering.messages import MAX_TOPICS
from tidings.spark.plan.counts import Ints, SubscriptionTally, counts_of
from tidings.spark.plan.entries import PlanEntries
from tidings.spark.plan.local import CountedSubscriptions
from tidings.spark.plan.sites import PlannedSites, found_sites, no_site, two_sites, unknown_site
from tidings.spark.plan.tables import LISTED, columns_of, kind_of, no_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STRIPE_BYTES = 4 * 2**20
STRIPES = pa.schema([("start", pa.int64()), ("sums", pa.binary())])
SHOWN_SITES = 257


def read_frame(session: SparkSession, source: str, sites: PlannedSites | None) -> DataFrame:
    """Read the table at any path that Spark reads, as (client, topic, site), one row per topic."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

    kind = kind_of(source)
    reader = session.read.option("header", "true") if kind == "csv" else session.read
    try:
        frame = reader.format(kind).load(source)
        names = frame.columns
    except PySparkException as error:
        raise PipelineError(f"cannot read {source} as {kind}: {_first_line(error)}") from None
    if kind == "json" and not names:  # no lines, no rows
        return session.createDataFrame([], "client string, topic string, site string")
    columns = columns_of(source, names)
    found = frame.schema[columns.topic].dataType.typeName()
    listed = found == "array"
    if columns.topic == LISTED and not listed:
        raise no_list(source, found)
    text = F.col(columns.topic).cast("array<string>" if listed else "string")
    topic = F.explode(text) if listed else text
    site = F.lit(None) if columns.site is None else F.nullif(F.col(columns.site).cast("string"), F.lit(""))
    rows = frame.select(
        F.nullif(F.col(columns.client).cast("string"), F.lit("")).alias("client"),
        topic.alias("topic"),
        site.cast("string").alias("site"),
    )
    return with_sites(session, rows, sites)


def with_sites(session: SparkSession, rows: DataFrame, sites: PlannedSites | None) -> DataFrame:
    """Fill in the sites that are known otherwise; a client that is listed elsewhere gets a second row, an error
    later."""
    from pyspark.sql import functions as F  # noqa: N812

    if sites is None:
        return rows
    if sites.of_client:
        listed = session.createDataFrame(list(sites.of_client.items()), "client string, listed string")
        rows = rows.join(F.broadcast(listed), "client", "left").select(
            "client",
            "topic",
            F.explode_outer(F.array_distinct(F.array_compact(F.array("site", "listed")))).alias("site"),
        )
    return rows.fillna(sites.default, "site") if sites.default is not None else rows


def count_on_spark(
    where: str, rows: DataFrame, sites: PlannedSites | None, *, rest: bool = False
) -> CountedSubscriptions:
    """Count (client, topic, site) rows where they are. Errors name the client: rows have no numbers here."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = rows.persist()
    try:
        entries = PlanEntries(_topics(where, rows), rest=rest)
        known = sites or found_sites(_different(rows.where("site IS NOT NULL"), "site", SHOWN_SITES))
        settled = rows if known.default is None else rows.fillna(known.default, "site")
        clients = settled.groupBy("client").agg(
            F.collect_set("topic").alias("topics"),
            F.min("site").alias("site"),
            F.max("site").alias("other"),
            F.count_if(F.col("site").isNull()).alias("without"),
        )
        _check_clients(where, clients, known)
        sums = _summed(clients.select("topics", "site"), entries, known)
    finally:
        rows.unpersist()
    return CountedSubscriptions(entries, known, counts_of(sums, len(entries)))


def _topics(where: str, rows: DataFrame) -> list[str]:
    found = _different(rows, "topic", MAX_TOPICS + 1)
    for text in found:
        try:
            TopicPattern(text)
        except TopicError as error:
            wrong = rows.where(rows["topic"].eqNullSafe(text)).first()
            client = None if wrong is None else wrong["client"]
            reason = "the topic is missing" if text is None else str(error)
            raise PipelineError(f"{where}: a row of client {client!r}: {reason}") from None
    return found


def _different(rows: DataFrame, column: str, limit: int) -> list[Any]:
    """Return the distinct values, at most `limit`."""
    return [row[column] for row in rows.select(column).distinct().limit(limit).collect()]


def _check_clients(where: str, clients: DataFrame, sites: PlannedSites) -> None:
    """Check clients and their sites for every mistake in one job."""
    unknown = ~clients["site"].isin(*sites.names) | ~clients["other"].isin(*sites.names)
    several = clients["site"] != clients["other"]
    nothing = clients["client"].isNull() | (clients["without"] > 0)
    wrong = clients.where(unknown | several | nothing).first()
    if wrong is None:
        return
    client, site, other = wrong["client"], wrong["site"], wrong["other"]
    if client is None:
        raise PipelineError(f"{where}: a row with topic {wrong['topics'][0]!r} has no client")
    if wrong["without"]:
        raise no_site(where, client)
    if site not in sites.names or other not in sites.names:
        stranger = other if site in sites.names else site
        raise unknown_site(f"{where}: a row of client {client!r}", stranger, sites)
    listed = sites.of_client.get(client)
    if listed is not None and listed in (site, other):
        raise two_sites(where, client, other if listed == site else site, listed)
    raise PipelineError(f"{where}: client {client!r} is at site {other!r} and at {site!r}")


def _summed(clients: DataFrame, entries: PlanEntries, sites: PlannedSites) -> Ints:
    texts, names = entries.texts, sites.names
    width = len(texts) + len(names)
    height = max(1, STRIPE_BYTES // (8 * width))

    def multiply(batches: Iterable[Any]) -> Iterator[Any]:
        tally = SubscriptionTally(PlanEntries(texts), len(names))
        for batch in batches:
            _add(tally, batch, texts, names)
        for start in range(0, width, height):
            sums = tally.sums[start : start + height]
            if sums.any():
                yield pa.RecordBatch.from_pylist([{"start": start, "sums": sums.tobytes()}], schema=STRIPES)

    def add(table: Any) -> Any:
        total = sum(np.frombuffer(sums, dtype=np.int64) for sums in table.column("sums").to_pylist())
        row = {"start": table.column("start")[0].as_py(), "sums": np.asarray(total).tobytes()}
        return pa.Table.from_pylist([row], schema=STRIPES)

    stripes = clients.mapInArrow(multiply, "start long, sums binary")
    totals = stripes.groupBy("start").applyInArrow(add, "start long, sums binary").collect()
    result = np.zeros((width, width), dtype=np.int64)
    for row in totals:
        stripe = np.frombuffer(row["sums"], dtype=np.int64).reshape(-1, width)
        result[row["start"] : row["start"] + len(stripe)] = stripe
    return result


def _add(tally: SubscriptionTally, batch: Any, texts: tuple[str, ...], names: tuple[str, ...]) -> None:
    topics = batch.column("topics")
    clients = pc.list_parent_indices(topics).to_numpy().astype(np.int64)
    codes = pc.index_in(pc.list_flatten(topics), value_set=pa.array(texts, pa.string()))
    sites = pc.index_in(batch.column("site"), value_set=pa.array(names, pa.string()))
    tally.add(
        clients,
        codes.to_numpy(zero_copy_only=False).astype(np.int64),
        sites.to_numpy(zero_copy_only=False).astype(np.int64),
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
