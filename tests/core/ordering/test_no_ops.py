"""What a sequencer says once is published until the service has it, a bounded number at a time, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import tidings.core.ordering.no_ops as no_ops
from tidings.core.events.timestamp import Timestamp
from tidings.core.ordering.layout import single
from tidings.core.ordering.server.machine import PublishNoOps


@given(st.lists(st.sampled_from(["add", "take", "confirm", "fail"]), max_size=80), st.randoms())
def test_the_outbox_is_a_list_that_is_worked_off(steps: list[str], random: object) -> None:
    had: list[int] = []
    outbox = no_ops.NoOpOutbox(single("s"), lambda server, number: had.append(number))
    waiting: list[int] = []
    under_way: dict[int, PublishNoOps] = {}
    confirmed: list[int] = []
    added = 0
    with_bound = no_ops.MAX_UNDER_WAY
    no_ops.MAX_UNDER_WAY = 3
    try:
        for step in steps:
            if step == "add":
                added += 1
                outbox.add(PublishNoOps("s", added, Timestamp(0, added), 1))
                waiting.append(added)
            elif step == "take":
                taken = {fact.number: fact for fact in outbox.take()}
                expected = waiting[: 3 - len(under_way)]
                assert list(taken) == expected
                for number, fact in taken.items():
                    made = outbox.event(fact, "s", 0, number)
                    assert (made.stamp, made.kind, made.sequence) == (Timestamp(0, number), 1, number)
                del waiting[: len(expected)]
                under_way |= taken
            elif under_way:
                number = random.choice(sorted(under_way))  # type: ignore[attr-defined]
                fact = under_way.pop(number)
                if step == "confirm":
                    confirmed.append(number)
                    outbox.confirmed(fact)
                else:
                    waiting.insert(0, number)
                    outbox.failed(fact)
            assert had == confirmed
    finally:
        no_ops.MAX_UNDER_WAY = with_bound
