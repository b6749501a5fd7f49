"""When a publisher takes a server for dead: at every other repeat of its first request, whatever else it repeats."""

from __future__ import annotations

from recording_port import RecordingPort
from tidings.core.ordering.publisher import REPEAT_NS, OrderedPublisher
from tidings.core.ordering.stamps import Chain


def test_only_the_first_unanswered_request_says_that_a_server_is_silent() -> None:
    port = RecordingPort("p")
    silences: list[int] = []
    publisher = OrderedPublisher(
        port, Chain(["a"], [0], 1), on_silence=lambda server: silences.append(port.now)
    )
    for number in range(5):  # each is repeated by its own clock
        port.now = number * REPEAT_NS // 10
        publisher.publish(0, f"event {number}")
    while port.timers and len(port.sent) < 60:
        name, at = min(port.timers.items(), key=lambda item: item[1])
        del port.timers[name]
        port.now = at
        publisher.on_timer(name)
    # Sent at 0, repeated at 1, 2, 4 and 8 times REPEAT_NS: every other repeat says so.
    assert silences[:2] == [2 * REPEAT_NS, 8 * REPEAT_NS]
    assert len(silences) <= sum(message.request == 1 for _, message in port.sent) // 2
