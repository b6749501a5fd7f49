"""`tidings dead TOPIC`: dead letters in the archive of a live broker, and their second life."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidings as api
from broker_thread import BrokerThread
from command import tidings
from tidings.core.events.event import Event
from tidings.drivers.sockets.archive_read_service import ArchiveReadService
from tidings.recording.recorder import Recorder

GIVEN_UP = 3


async def give_up_events(url: str) -> None:
    """Make dead letters of a few events, as a reader does that never acknowledges."""
    async with api.connect(url) as bus:
        options = {"durable": "billing", "ack": "manual", "max_deliveries": 1, "dead_letter": "/dead/billing"}
        async with bus.subscribe("/orders/**", **options) as stream:
            for number in range(GIVEN_UP):
                await bus.publish(f"/orders/{number}", {"n": number}, b"payload %d" % number)
            for _ in range(GIVEN_UP):
                await (await stream.get(20)).nack()
            with pytest.raises(TimeoutError):
                await stream.get(0.5)


async def record(url: str, directory: Path) -> None:
    recorder = Recorder(url, directory, "/dead/**", name="recorder")
    await recorder.start()
    running = asyncio.create_task(recorder.run())
    await give_up_events(url)
    async with api.connect(url) as bus:
        await bus.publish("/dead/billing", {"other": True}, b"no dead letter")
        await bus.publish("/dead/else", {"dead_topic": "/x", "dead_event": "p:1"}, b"of another topic")
    await recorder.stop()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dead") / "archive"


@pytest.fixture(scope="module")
def broker(archive: Path) -> Iterator[BrokerThread]:
    with BrokerThread(archive=ArchiveReadService(archive)) as started:
        started.run(record(started.url, archive))
        yield started


def letters(*arguments: object) -> list[dict[str, object]]:
    done = tidings("dead", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def news(broker: BrokerThread) -> list[Event]:
    return [event for event in broker.settled() if event.topic.startswith("/orders")]


def test_dead_letters_are_listed(broker: BrokerThread) -> None:
    found = letters(broker.url, "/dead/billing")
    assert [(row["topic"], row["attributes"], row["payload"]) for row in found] == [
        (f"/orders/{number}", {"n": number}, f"payload {number}") for number in range(GIVEN_UP)
    ]
    for row, event in zip(found, news(broker), strict=False):
        assert (row["subscription"], row["deliveries"]) == ("billing", 1)
        assert "never acknowledged" in str(row["reason"])
        assert (row["event"], row["published_at"]) == (str(event.id), event.published_at)
    shown = tidings("dead", broker.url, "/dead/billing").stdout.splitlines()
    assert len(shown) == GIVEN_UP and "/orders/0" in shown[0] and shown[0].endswith("| payload 0")
    assert tidings("dead", broker.url, "/none").stdout == "no dead letters on /none\n"


def test_an_archive_is_read_without_its_broker(broker: BrokerThread, archive: Path) -> None:
    url = "tidings://127.0.0.1:9"
    assert letters(url, "/dead/**", "--archive", archive)[-1]["topic"] == "/x"
    done = tidings("dead", url, "/dead/billing", "--archive", archive, "--again")
    assert done.returncode == 4 and "connection refused" in done.stderr
    assert done.stdout == ""


def test_dead_letters_are_published_again_as_they_were(broker: BrokerThread) -> None:
    before = news(broker)
    one = str(letters(broker.url, "/dead/billing")[1]["id"])
    done = tidings("dead", broker.url, "/dead/billing", "--again", "--id", one)
    assert (done.returncode, done.stdout) == (0, "published 1 event again\n")
    other = str(before[2].id)
    assert letters(broker.url, "/dead/billing", "--again", "--id", other) == [{"published": 1}]
    again = news(broker)[len(before) :]
    assert [(event.topic, dict(event.attributes), event.payload) for event in again] == [
        ("/orders/1", {"n": 1}, b"payload 1"),
        ("/orders/2", {"n": 2}, b"payload 2"),
    ]
    assert letters(broker.url, "/dead/billing", "--again") == [{"published": GIVEN_UP}]


def test_an_unknown_id_publishes_nothing(broker: BrokerThread) -> None:
    before = len(news(broker))
    known = letters(broker.url, "/dead/billing")[0]["id"]
    done = tidings("dead", broker.url, "/dead/billing", "--again", "--id", known, "--id", "x:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--id: not among the dead letters on /dead/billing: x:1" in done.stderr
    assert len(news(broker)) == before


def test_a_broker_without_an_archive_says_so() -> None:
    with BrokerThread() as other:
        done = tidings("dead", other.url, "/dead/billing")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert "archive" in done.stderr
