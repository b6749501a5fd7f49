"""A named client that is killed and started again, on a guaranteed network: what came meanwhile is not lost.

Its broker sends that as soon as it is back, which may be before it has subscribed again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import tidings
from live_network import until
from recording_network import guaranteed_broker, play, running
from tidings.core.client import reliable_session as reliable_client
from tidings.core.client.reliable_session import ReliableSession
from tidings.core.overlay.guaranteed.bookmarks import LeftBookmarks

pytestmark = pytest.mark.timeout(100)


async def killed_subscriber(url: str, *topics: str) -> None:
    """Subscribes as `reader`, and goes without a word."""
    bus = tidings.connect(url, name="reader")
    await bus.open()
    await bus.subscribe(*topics).__aenter__()
    await kill(bus)


async def kill(bus: Any) -> None:
    bus.connection._keeper.cancel()
    bus.connection._session.abort()
    await asyncio.sleep(0.05)


async def publish(url: str, topic: str, numbers: range) -> None:
    async with tidings.connect(url) as bus:
        await bus.publish_many((topic, {"number": number}, b"") for number in numbers)


async def shown(stream: tidings.Stream, count: int) -> list[object]:
    return [(await stream.get(10)).attributes["number"] for _ in range(count)]


def check_next_life(tmp_path: Path, expected: list[int]) -> None:
    """0 to 49 are published while the reader is away, 50 to 59 when it has subscribed again."""

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            await killed_subscriber(url, "/a")
            await publish(url, "/a", range(50))
            async with tidings.connect(url, name="reader") as bus:
                await asyncio.sleep(0.3)
                async with bus.subscribe("/a") as stream:
                    await publish(url, "/a", range(50, 60))
                    assert await shown(stream, len(expected)) == expected
                    with pytest.raises(TimeoutError):
                        await stream.get(0.2)

    play(main)


def test_what_came_before_it_subscribed_again_is_shown(tmp_path: Path) -> None:
    check_next_life(tmp_path, list(range(60)))


def test_without_keeping_it_would_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug to the test above."""
    monkeypatch.setattr(ReliableSession, "_keep_early", lambda self, subscriptions, what, notice: None)
    check_next_life(tmp_path, list(range(50, 60)))


def test_what_another_subscription_of_that_name_wanted_is_not_shown(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            await killed_subscriber(url, "/a", "/b")
            await publish(url, "/a", range(5))
            await publish(url, "/b", range(5, 10))
            async with tidings.connect(url, name="reader") as bus:
                await asyncio.sleep(0.3)
                async with bus.subscribe("/b") as stream:
                    await publish(url, "/b", range(10, 15))
                    assert await shown(stream, 10) == list(range(5, 15))

    play(main)


def test_what_nobody_asks_for_again_is_acknowledged_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reliable_client, "EARLY_NS", 300_000_000)

    async def main() -> None:
        server = guaranteed_broker(tmp_path)
        async with running(server) as url:
            await killed_subscriber(url, "/a")
            await publish(url, "/a", range(20))
            async with tidings.connect(url, name="reader") as bus:
                assert server.status()["queued"] == 20
                await until(lambda: server.status()["queued"] == 0)
                session = bus.connection.client.session
                assert not session._early and not session._is_early

    play(main)


def check_what_was_held(tmp_path: Path, taken: int, expected: list[int]) -> None:
    """Ten events, of which so many are taken; then the reader dies, and another one of its name reads on."""

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            bus = tidings.connect(url, name="reader")
            await bus.open()
            stream = await bus.subscribe("/a").__aenter__()
            await publish(url, "/a", range(10))
            assert await shown(stream, taken) == list(range(taken))
            await asyncio.sleep(0.1)  # what it is done with is told
            await kill(bus)
            async with tidings.connect(url, name="reader") as again, again.subscribe("/a") as rest:
                assert await shown(rest, len(expected)) == expected
                with pytest.raises(TimeoutError):
                    await rest.get(0.2)

    play(main)


@pytest.mark.parametrize("taken", [0, 1, 4, 10])
def test_who_dies_with_an_event_is_not_done_with_it(tmp_path: Path, taken: int) -> None:
    """Who asks for an event is done with those before; the last one it may have been working on."""
    check_what_was_held(tmp_path, taken, list(range(max(taken - 1, 0), 10)))


def test_done_when_taken_would_lose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug to the test above."""
    take = tidings.Stream._next

    def hasty(self: tidings.Stream) -> tidings.Event | None:
        event = take(self)
        self._finish()
        return event

    monkeypatch.setattr(tidings.Stream, "_next", hasty)
    check_what_was_held(tmp_path, 4, list(range(4, 10)))


# --- One that had changed its topics


def check_changed(tmp_path: Path, topics: tuple[str, ...], expected: list[int]) -> None:
    """It was subscribed to /a, and to /b as well when it was killed."""

    async def main() -> None:
        async with running(guaranteed_broker(tmp_path)) as url:
            bus: Any = tidings.connect(url, name="reader")
            await bus.open()
            stream = await bus.subscribe("/a").__aenter__()
            await stream.add("/b")
            await kill(bus)
            for first, topic in ((0, "/a"), (10, "/b"), (20, "/c")):
                await publish(url, topic, range(first, first + 10))
            async with tidings.connect(url, name="reader") as again, again.subscribe(*topics) as resumed:
                await publish(url, "/a", range(30, 40))
                assert await shown(resumed, len(expected)) == expected
                with pytest.raises(TimeoutError):
                    await resumed.get(0.2)
                await asyncio.sleep(6)
                status = await again.status()
                assert status["subscriptions"] == 1, "those that it had before have ended"

    play(main)


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (("/a", "/b"), [*range(20), *range(30, 40)]),
        (("/b", "/c"), [*range(10, 20)]),
        (("/a",), [*range(10), *range(30, 40)]),
    ],
)
def test_what_waits_for_one_that_had_changed_is_for_its_next_life(
    tmp_path: Path, topics: tuple[str, ...], expected: list[int]
) -> None:
    check_changed(tmp_path, topics, expected)


def test_without_a_bookmark_it_would_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug to the test above."""
    monkeypatch.setattr(LeftBookmarks, "take", lambda self, subscription: None)
    with pytest.raises((AssertionError, TimeoutError)):
        check_changed(tmp_path, ("/a", "/b"), [*range(20), *range(30, 40)])
