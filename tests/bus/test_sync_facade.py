"""The bus without `async`: the same calls from an ordinary thread."""

from __future__ import annotations

import threading

import pytest

import tidings
import tidings.sync


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "tidings"]


def test_publish_and_subscribe_from_an_ordinary_thread() -> None:
    with tidings.sync.embedded(brokers=3) as bus, bus.subscribe("/t", where="x > 1") as stream:
        event_id = bus.publish("/t", {"x": 2}, b"p")
        bus.publish("/t", {"x": 0})
        assert bus.publish_many([("/t", {"x": number}, b"") for number in range(4)]) == 4
        first = stream.get(timeout_s=5.0)
        assert (first.id, first.payload) == (event_id, b"p")
        assert [stream.get(timeout_s=5.0).attributes["x"] for _ in range(2)] == [2, 3]
        with pytest.raises(TimeoutError):
            stream.get(timeout_s=0.01)
        assert stream.dropped == 0
        assert bus.status()["broker"] == "b0"
    assert threads() == []


def test_iterating_gives_one_event_after_the_other() -> None:
    with tidings.sync.embedded(brokers=1) as bus, bus.subscribe("/t", order="fifo") as stream:
        bus.publish_many(("/t", {"n": number}, b"") for number in range(5))
        shown = [event.attributes["n"] for _, event in zip(range(5), stream, strict=False)]
        assert shown == list(range(5))


def test_a_stream_says_what_it_lacks_as_one_of_async() -> None:
    with tidings.sync.embedded(brokers=3, mode="guaranteed", archive=True) as bus:
        bus.publish("/t", {"n": 1})
        with bus.subscribe("/t", start="earliest") as past:
            assert past.get(timeout_s=5.0).attributes["n"] == 1
            assert (past.live, past.history_gaps) == (True, [])
            assert (past.refused, past.set_aside) == (0, 0)
        with bus.subscribe("/t", durable="billing", ack="manual", max_deliveries=1) as stream:
            stream.completed()
            assert (stream.uncovered, stream.live, stream.history_gaps) == ((), True, [])
            bus.publish("/t", {"n": 2})
            stream.nack(stream.get(timeout_s=5.0))
            assert (stream.refused, stream.set_aside) == (0, 1)


def test_iterating_in_another_thread_ends_when_the_stream_is_closed() -> None:
    with tidings.sync.embedded(brokers=1) as bus:
        shown: list[tidings.Event] = []
        with bus.subscribe("/t") as stream:
            came = threading.Event()

            def read() -> None:
                for event in stream:
                    shown.append(event)
                    came.set()

            reader = threading.Thread(target=read)
            reader.start()
            bus.publish("/t")
            assert came.wait(timeout=5.0)
        reader.join(timeout=5.0)
        assert not reader.is_alive()
        assert len(shown) == 1
        with pytest.raises(tidings.ConnectionFailed, match="closed"):
            stream.get()


def test_more_buses_share_the_loop_and_may_close_first() -> None:
    with tidings.sync.embedded(brokers=3) as bus:
        with bus.connect("b2", name="other") as other, bus.subscribe() as stream:
            assert threads() == ["tidings"]
            other.publish("/t")
            assert stream.get(timeout_s=5.0).source == "other"
        bus.publish("/t")
        with pytest.raises(RuntimeError, match="only a bus made by embedded"):
            other.connect()


def test_a_bus_that_is_not_open_says_so() -> None:
    bus = tidings.sync.embedded(brokers=1)
    for call in (lambda: bus.publish("/t"), lambda: bus.subscribe("/t"), bus.status, bus.connect):
        with pytest.raises(tidings.ConnectionFailed, match="not open"):
            call()
    bus.close()


def test_a_bus_that_was_closed_is_as_one_of_async() -> None:
    bus = tidings.sync.embedded(brokers=1)
    bus.open()
    other = bus.connect()
    other.open()
    streams = [each.subscribe("/t").__enter__() for each in (bus, other)]
    bus.publish("/t")
    bus.close()
    for call in (
        lambda: bus.publish("/t"),
        lambda: bus.subscribe("/t"),
        lambda: other.publish("/t"),
        bus.status,
        bus.connect,
        *(stream.get for stream in streams),
        *(lambda stream=stream: next(iter(stream)) for stream in streams),
    ):
        with pytest.raises(tidings.ConnectionFailed):
            call()
    for each in (*streams, bus, other, bus, other):
        each.__exit__(None, None, None)
    bus.close()
    assert threads() == []
    with bus:
        assert bus.publish("/t").sequence == 1, "it may be opened again, as one of async may"


def test_mistakes_come_through_as_they_are() -> None:
    with tidings.sync.embedded(brokers=1, causal=False) as bus:
        with pytest.raises(tidings.TopicError):
            bus.publish("t")
        with pytest.raises(tidings.FilterError):
            bus.subscribe(where="x >")
        with pytest.raises(tidings.SubscriptionRefused), bus.subscribe(order="causal"):
            pass


def test_a_connection_that_fails_leaves_no_thread() -> None:
    bus = tidings.sync.connect("tidings://127.0.0.1:1", timeout_s=2.0)
    with pytest.raises(tidings.ConnectionFailed), bus:
        pass
    assert threads() == []


def test_a_handler_that_is_a_coroutine_function_is_refused() -> None:
    async def handler(event: tidings.Event) -> str:
        return event.text

    with tidings.sync.embedded() as bus, pytest.raises(ValueError, match="must be a plain function here"):
        bus.serve("/price", handler)
