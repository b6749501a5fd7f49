"""The reader of a durable subscription, called as Spark calls it, over a live chain of brokers; no Spark is needed."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import tidings
from broker_thread import BrokerThread
from network_thread import NetworkThread
from tidings.core.errors import ConnectionFailed, PipelineError
from tidings.spark.format.durable_stream_reader import DurableStreamReader
from tidings.spark.format.source import SCHEMA

pytestmark = pytest.mark.timeout(150)

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkThread]:
    with NetworkThread(tmp_path_factory.mktemp("network")) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """One for each test."""
    return str(request.node.name)[:60].replace("[", "-").rstrip("]")


def reader_of(url: str, name: str, **options: object) -> DurableStreamReader:
    given = {key: str(value) for key, value in options.items()}
    return DurableStreamReader({"url": url, "durable": name, "subscribe": f"/{name}/*", **given}, SCHEMA)


def publish(network: NetworkThread, name: str, first: int, stop: int, at: str = "b1") -> None:
    async def work() -> None:
        async with tidings.connect(network.url(at)) as bus:
            await bus.publish_many((f"/{name}/x", {"n": n}, b"%d" % n) for n in range(first, stop))

    network.run(work())


def kept(value: Any) -> Any:
    """As a checkpoint has it."""
    return json.loads(json.dumps(value))


def rows_of(reader: DurableStreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    """Payload and attempt, as the workers read them: each with a copy of the reader."""
    serializer = CloudPickleSerializer()
    found: list[tuple[int, int]] = []
    for partition in reader.partitions(kept(start), kept(end)):
        copied, wanted = serializer.loads(serializer.dumps((reader, partition)))
        for batch in copied.read(wanted):
            assert batch.column("offset").to_pylist() == sorted(batch.column("offset").to_pylist())
            payloads = map(int, batch.column("value").to_pylist())
            found += zip(payloads, batch.column("attempt").to_pylist(), strict=True)
    return found


def take(
    reader: DurableStreamReader, start: Any, count: int, limit: Any = ALL
) -> tuple[Any, list[tuple[int, int]]]:
    """A batch with so many events: they may be on their way."""
    until = time.monotonic() + 30
    while True:
        end = reader.latestOffset(start, limit)
        if end["number"] - start["number"] >= count and start["number"]:
            return end, rows_of(reader, start, end)
        if not start["number"]:
            start = end
        assert time.monotonic() < until, (start, end)
        time.sleep(0.02)


def test_on_elsewhere_with_the_checkpoint_and_without(network: NetworkThread, name: str) -> None:
    """The subscription's home is b0; its readers are attached through the other brokers."""
    first = reader_of(network.url("b0"), name)
    begin = first.latestOffset(first.initialOffset(), ALL)
    publish(network, name, 0, 30)
    middle, rows = take(first, begin, 10, ReadMaxRows(10))
    assert rows == [(number, 1) for number in range(10)]
    end, rows = take(first, middle, 10, ReadMaxRows(10))
    first.commit(middle)
    # as if it had died without a word: its connection still stands
    second = reader_of(f"tidings://127.0.0.1:1,{network.url('b2').removeprefix('tidings://')}", name)
    assert rows_of(second, middle, end) == rows == [(number, 1) for number in range(10, 20)]
    with pytest.raises(
        PipelineError, match=rf"^another query reads '{name}' now \(client spark-.* took over"
    ):
        first.latestOffset(end, ALL)
    last, rows = take(second, end, 10)
    assert rows == [(number, 1) for number in range(20, 30)]
    second.commit(end)
    second.stop()
    third = reader_of(network.url("b1"), name)
    publish(network, name, 30, 33)
    start = third.latestOffset(third.initialOffset(), ReadMaxRows(10))
    assert start["number"] == 31
    assert rows_of(third, third.initialOffset(), start) == [(number, 2) for number in range(20, 30)]
    _, rows = take(third, start, 3)
    assert rows == [(number, 1) for number in range(30, 33)]
    with pytest.raises(
        PipelineError, match=r"^this checkpoint cannot go on: .* was read further by somebody else"
    ):
        rows_of(second, last, last)


def test_the_home_restarts(network: NetworkThread, name: str) -> None:
    """The driver and the workers wait for it; the attempts stay."""
    reader = reader_of(network.url("b0"), name, timeout=60)
    begin = reader.latestOffset(reader.initialOffset(), ALL)
    publish(network, name, 0, 20)
    end, rows = take(reader, begin, 20)
    network.stop("b0")
    again: list[list[tuple[int, int]]] = []
    waiting = threading.Thread(target=lambda: again.append(rows_of(reader, begin, end)))
    waiting.start()
    network.start("b0")
    waiting.join(60)
    assert again == [rows] == [[(number, 1) for number in range(20)]]
    publish(network, name, 20, 25)
    assert take(reader, end, 5)[1] == [(number, 1) for number in range(20, 25)]
    reader.stop()


def test_only_what_there_is_now(network: NetworkThread, name: str) -> None:
    reader = reader_of(network.url("b0"), name)
    begin = reader.latestOffset(reader.initialOffset(), ALL)
    publish(network, name, 0, 10, at="b0")
    take(reader, begin, 10)
    reader.stop()
    again = reader_of(network.url("b0"), name)
    again.prepareForTriggerAvailableNow()
    middle = again.latestOffset(begin, ReadMaxRows(4))
    publish(network, name, 10, 20, at="b0")
    assert middle["number"] - begin["number"] == 4
    end = again.latestOffset(middle, ALL)
    assert end["number"] - begin["number"] == 10
    assert again.latestOffset(end, ALL) == end
    again.stop()


def test_a_program_and_a_query(network: NetworkThread, name: str) -> None:
    """A subscription made by a program, with a filter; one of the two at a time."""

    async def work(position: int) -> list[int]:
        async with (
            tidings.connect(network.url("b1")) as bus,
            bus.subscribe(f"/{name}/*", durable=name, where="n < 100") as stream,
        ):
            await bus.publish_many((f"/{name}/x", {"n": n}, b"%d" % n) for n in range(position, position + 5))
            refused = reader_of(network.url("b2"), name, where="n < 100")
            with pytest.raises(
                PipelineError, match=rf"^'{name}' is held by client .*, which must leave first$"
            ):
                await asyncio.to_thread(lambda: refused.latestOffset(refused.initialOffset(), ALL))
            return [int((await stream.get(30)).payload) for _ in range(3)]

    assert network.run(work(0)) == [0, 1, 2]
    publish(network, name, 100, 101)
    reader = reader_of(network.url("b2"), name, where="n < 100")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert rows_of(reader, start, end) == [(3, 1), (4, 1)]
    reader.stop()
    assert network.run(work(5)) == [3, 4, 5]
    with pytest.raises(PipelineError, match="was read further by somebody else"):
        reader.latestOffset(end, ALL)


def test_mistakes_are_told_in_one_line(network: NetworkThread, name: str) -> None:
    url = network.url("b1")
    reader = reader_of(url, name)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()

    def told(words: str, **options: object) -> None:
        wrong = reader_of(url, name, **options)
        with pytest.raises(PipelineError) as raised:
            wrong.latestOffset(wrong.initialOffset(), ALL)
        assert words in str(raised.value) and "\n" not in str(raised.value)

    told(f"'{name}' has topics /{name}/*; cancel it to select something else", subscribe="/other")
    told(f"'{name}' has no filter; cancel it", where="n > 1")
    told("option durable 'a b' must have", durable="a b")
    told("options archive and durable exclude each other", archive="/a")
    for position, words in (
        ({**end, "durable": "other"}, f"is of 'other', not of '{name}'"),
        ({"0123": 4}, "is not of a durable subscription"),
        ({**end, "number": "x"}, "is malformed: 'x' is not a number"),
        ({**end, "number": 10_000}, f"the position is ahead of '{name}', which was read up to 1"),
    ):
        other = reader_of(url, name)
        with pytest.raises(PipelineError, match=words):
            other.latestOffset(position, ALL)
        other.stop()


def test_a_group_and_a_subscription_that_is_gone(network: NetworkThread, name: str) -> None:
    reader = reader_of(network.url("b0"), name)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()

    network.run(_cancel(network, name))
    with pytest.raises(PipelineError, match=r"^this checkpoint cannot go on: .* is gone: it was cancelled"):
        reader.latestOffset(end, ALL)
    network.run(_join(network, name))
    with pytest.raises(PipelineError, match=f"'{name}' is a group"):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_a_new_name_waits_for_every_broker(network: NetworkThread, name: str) -> None:
    network.stop("b2")
    reader = reader_of(network.url("b0"), name, timeout=1)
    try:
        with pytest.raises(ConnectionFailed) as raised:
            reader.latestOffset(reader.initialOffset(), ALL)
    finally:
        network.start("b2")
    assert f"did not attach '{name}' in time: a new name waits until every broker" in str(raised.value)
    reader.stop()


def test_networks_and_addresses_that_are_wrong(tmp_path: Path) -> None:
    with BrokerThread("best-effort") as broker:
        reader = reader_of(broker.url, "lake")
        with pytest.raises(
            PipelineError, match=r"needs a guaranteed network, and .* runs in mode 'best-effort'"
        ):
            reader.latestOffset(reader.initialOffset(), ALL)
    reader = reader_of("tidings://127.0.0.1:1", "lake")
    with pytest.raises(ConnectionFailed, match=r"cannot reach tidings://127\.0\.0\.1:1: connection refused"):
        reader.latestOffset(reader.initialOffset(), ALL)


async def _cancel(network: NetworkThread, name: str) -> None:
    async with tidings.connect(network.url("b1")) as bus:
        await bus.cancel_durable(name)


async def _join(network: NetworkThread, name: str) -> None:
    async with tidings.connect(network.url("b1")) as bus, bus.subscribe(f"/{name}/*", group=name):
        pass
