"""What the tasks of the sink do with a real broker, without Spark: repeated, restarted, reordered, refused."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructType

from breadth import examples
from broker_thread import BrokerThread
from live_ordering import Hosts
from tidings.core.errors import PipelineError
from tidings.core.ordering.layout import single
from tidings.spark.audit.archive import audit_archives
from tidings.spark.audit.stages import HereStages
from tidings.spark.format import sink_publishing
from tidings.spark.format.sink import SinkOptions, _write, parse_sink_options, source_name
from tidings.spark.format.sink_publishing import CHUNK_BYTES, CHUNK_EVENTS, SinkTarget, Spool, publish
from tidings.spark.format.sink_rows import Outgoing, SinkColumns
from tidings.storage.archive import Archive

pytestmark = pytest.mark.timeout(60)


def rows(count: int, first: int = 0, size_bytes: int = 0) -> list[Outgoing]:
    return [
        ("/a", {"number": number}, b"%d" % number + bytes(size_bytes))
        for number in range(first, first + count)
    ]


def spooled(events: list[Outgoing]) -> Spool:
    spool = Spool()
    spool.fill(events)
    return spool


def send(target: SinkTarget, events: list[Outgoing], partition: int = 0, batch: int = 7) -> str:
    """As a task does; the source."""
    with spooled(events) as spool:
        source = source_name("sink", "q", partition, spool.digest)
        publish(target, source, batch, spool, 0.0)
        return source


class Killed(Exception):
    """In place of the death of a worker."""


def interrupted(acts: Mapping[int, Callable[[], None]]) -> Callable[[Spool], Iterator[list[Outgoing]]]:
    """Before the chunk of that number something happens, once."""
    everything, to_do = Spool.chunks, dict(acts)

    def chunks(self: Spool) -> Iterator[list[Outgoing]]:
        for number, chunk in enumerate(everything(self)):
            to_do.pop(number, lambda: None)()
            yield chunk

    return chunks


def die() -> None:
    raise Killed


def send_half(target: SinkTarget, events: list[Outgoing], monkeypatch: pytest.MonkeyPatch) -> None:
    """The task dies when half of the chunks have been handed over; what becomes of these nobody knows."""
    with monkeypatch.context() as patch:
        patch.setattr(sink_publishing, "CHUNK_EVENTS", 50)
        patch.setattr(Spool, "chunks", interrupted({len(events) // 100: die}))
        with pytest.raises(Killed):
            send(target, events)


# --- The spool

frames = st.tuples(
    st.sampled_from(["/a", "/b/c"]),
    st.dictionaries(
        st.text(max_size=3), st.none() | st.booleans() | st.integers(0, 9) | st.text() | st.binary()
    ),
    st.binary(max_size=40),
)


@settings(max_examples=examples(60))
@given(st.lists(frames, max_size=30), st.sampled_from([1, 100, 10_000]))
def test_a_spool_gives_back_what_it_got(events: list[Any], memory_bytes: int) -> None:
    with Spool(memory_bytes) as spool, spooled(events) as other:
        spool.fill(events)
        for _ in range(2):
            assert [event for chunk in spool.chunks() for event in chunk] == events
        assert spool.count == len(events)
        assert spool.digest == other.digest


def test_the_digest_tells_rows_and_orders_apart() -> None:
    events = rows(20)
    variants = [
        events,
        events[::-1],
        events[:-1],
        [*events, events[0]],
        [("/ab", {}, b"")],
        [("/a", {}, b"b")],
    ]
    digests = set()
    for variant in variants:
        with spooled(variant) as spool:
            digests.add(spool.digest)
    assert len(digests) == len(variants)


def test_chunks_are_bounded_by_number_and_by_bytes() -> None:
    with spooled(rows(CHUNK_EVENTS * 2 + 1)) as spool:
        assert [len(chunk) for chunk in spool.chunks()] == [CHUNK_EVENTS, CHUNK_EVENTS, 1]
    with spooled(rows(7, size_bytes=CHUNK_BYTES // 3)) as spool:
        assert [len(chunk) for chunk in spool.chunks()] == [3, 3, 1]


def test_a_full_disk_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with Spool() as spool, open("/dev/full", "wb", buffering=0) as full, monkeypatch.context() as patch:
        patch.setattr(spool, "_file", full)
        with pytest.raises(PipelineError, match=r"cannot store the rows of a partition in .*: No space left"):
            spool.fill(rows(1))


# --- Guaranteed brokers


def test_rows_come_in_order_and_a_repetition_changes_nothing() -> None:
    events = rows(5_000)
    with BrokerThread() as broker:
        target = SinkTarget(broker.url)
        source = send(target, events)
        assert broker.repeated == 0
        assert send(target, events) == source
        shown = broker.settled()
        assert [event.payload for event in shown] == [payload for _, _, payload in events]
        assert {(event.source, event.incarnation) for event in shown} == {(source, 7)}
        assert broker.repeated == len(events)
        send(target, rows(10), batch=8)
        assert len(broker.settled()) == len(events) + 10


def test_a_task_that_dies_half_way_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events = rows(1_000)
    with BrokerThread() as broker:
        target = SinkTarget(broker.url)
        send_half(target, events, monkeypatch)
        send_half(target, events, monkeypatch)
        send(target, events)
        assert broker.payloads() == [payload for _, _, payload in events]
        assert 0 < broker.repeated < 2 * len(events)


def test_a_broker_that_restarts_between_two_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has forgotten what it took; its subscribers have not."""
    events = rows(1_000)
    with BrokerThread(data=tmp_path) as broker:
        target = SinkTarget(broker.url)
        send_half(target, events, monkeypatch)
        broker.restart()
        send(target, events)
        broker.restart()
        send(target, events)
        assert broker.payloads() == [payload for _, _, payload in events]


def test_a_broker_that_restarts_in_the_middle_of_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = rows(2_000)
    with BrokerThread(data=tmp_path) as broker:
        monkeypatch.setattr(sink_publishing, "CHUNK_EVENTS", 50)
        monkeypatch.setattr(Spool, "chunks", interrupted({3: broker.restart, 20: broker.restart}))
        send(SinkTarget(broker.url), events)
        assert broker.payloads() == [payload for _, _, payload in events]


def test_other_rows_are_never_taken_for_those_of_an_earlier_attempt() -> None:
    """After a shuffle the rows of a partition may come in another order: repeated, but not lost."""
    events = rows(100)
    with BrokerThread() as broker:
        send(SinkTarget(broker.url), events[:60])
        send(SinkTarget(broker.url), events[::-1])
        assert sorted(broker.payloads()) == sorted(payload for _, _, payload in events[:60] + events)


def test_a_later_attempt_is_no_earlier_life_of_its_source(tmp_path: Path) -> None:
    """Whatever order the rows of a batch come in again, and again: an audit finds the archive of it all in order."""
    columns = SinkColumns(StructType().add("value", StringType()), "/a")
    orders = list(permutations(["one", "two", "three"]))

    def write(options: SinkOptions, batch: int, values: Sequence[str]) -> None:
        batches = iter([pa.RecordBatch.from_pydict({"value": list(values)})])
        _write(options, columns, batches, query="q", batch=batch, partition=0, patience_s=0.0)

    with BrokerThread() as broker:
        options = parse_sink_options({"url": broker.url})
        for batch in (7, 8):
            for values in (*orders, orders[0]):
                write(options, batch, values)
        events = broker.settled()
        assert broker.repeated == 2 * len(orders[0])  # the attempts that were as an earlier one
    assert len(events) == len({event.id for event in events}) == 2 * 3 * len(orders)
    with Archive.open(tmp_path / "a") as archive:
        archive.append(events, 1)
    audited = audit_archives(HereStages(), [tmp_path / "a"], ["exactly_once", "fifo"], chunk_rows=100)
    assert audited.holds, audited.verdicts


def test_without_the_digest_rows_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug that shows what the test above is good for."""
    monkeypatch.setattr(Spool, "digest", "0")
    events = rows(100)
    with BrokerThread() as broker:
        send(SinkTarget(broker.url), events[:60])
        send(SinkTarget(broker.url), events[::-1])
        assert set(broker.payloads()) < {payload for _, _, payload in events}


def test_the_broker_keeps_nothing_of_a_publisher_that_is_gone() -> None:
    with BrokerThread() as broker:
        for partition in range(5):
            send(SinkTarget(broker.url), rows(3), partition)
        clients = broker._broker._node.attachments.clients  # type: ignore[union-attr]
        assert not [name for name in clients if name.startswith("sink")]


def test_an_attempt_that_was_given_up_ends_when_the_next_one_begins() -> None:
    """Both have the same name; the later one goes on."""
    events = rows(10)
    with BrokerThread() as broker:
        target = SinkTarget(broker.url)

        async def meet() -> None:
            zombie = await target.open("sink-q-0", 7)
            assert await zombie.publish_many(events[:5]) == 5
            service = await target.open("sink-q-0", 7)
            assert await service.publish_many(events) == 10
            await service.close()
            await zombie.close()

        broker.run(meet())
        assert broker.payloads() == [payload for _, _, payload in events]


# --- Brokers that are not there


def test_no_broker_is_one_clear_error() -> None:
    with BrokerThread() as broker:
        target = SinkTarget(broker.url, token="", timeout_s=0.5)
        broker.stop()
        with pytest.raises(PipelineError, match=r"^cannot reach tidings://127.*: connection refused$"):
            send(target, rows(1))
        with pytest.raises(PipelineError, match="cannot reach"):
            target.probe()


def test_a_broker_that_comes_late_is_waited_for(tmp_path: Path) -> None:
    with BrokerThread(data=tmp_path) as broker, spooled(rows(10)) as spool:
        broker.stop()
        started = threading.Timer(0.5, broker.start)
        started.start()
        publish(SinkTarget(broker.url), "sink-q-0", 1, spool, 20.0)
        started.join(20)
        assert len(broker.payloads()) == 10


def test_a_broker_that_goes_away_for_good_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = rows(2_000)
    with BrokerThread(data=tmp_path) as broker:
        with monkeypatch.context() as patch:
            patch.setattr(sink_publishing, "CHUNK_EVENTS", 50)
            patch.setattr(Spool, "chunks", interrupted({10: broker.stop}))
            with pytest.raises(PipelineError) as raised:
                send(SinkTarget(broker.url, timeout_s=1.0), events)
        words = (
            rf"{broker.url}: no confirmation within 1 s \(\d+ of 2000 rows of the partition are confirmed\)"
        )
        assert re.fullmatch(words, str(raised.value))
        broker.start()
        send(SinkTarget(broker.url), events)
        assert broker.payloads() == [payload for _, _, payload in events]


# --- What promises less


def test_a_best_effort_broker_does_not_take_again_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    events = rows(1_000)
    with BrokerThread("best-effort") as broker:
        target = SinkTarget(broker.url)
        send_half(target, events, monkeypatch)
        send(target, events)
        send(target, events)
        assert broker.payloads() == [payload for _, _, payload in events]
        assert broker.repeated >= len(events)


def test_with_sequencers_every_row_has_its_place_and_a_repetition_too() -> None:
    """At least once: what is repeated is another event with a number of its own, and the order goes on."""
    loop = asyncio.new_event_loop()
    hosts = Hosts(single("n1", ["/**"]))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(20)

    run(hosts.__aenter__())
    try:
        with BrokerThread(order="total", sequencers=[hosts["n1"].address]) as broker:
            target = SinkTarget(broker.url)
            events = rows(300)
            send(target, events)
            send(target, events)
            payloads = [payload for _, _, payload in events]
            assert broker.payloads() == payloads * 2
    finally:
        run(hosts.__aexit__())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()
