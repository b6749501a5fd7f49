"""What an order promises, checked on what clients published and were shown."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations


def check_agreement(shown: Mapping[str, Sequence[Hashable]]) -> None:
    """No event is shown twice to anybody, and any two show what both were shown in the same order."""
    for name, events in shown.items():
        repeated = len(events) - len(set(events))
        assert not repeated, f"{name} was shown {repeated} events twice"
    for one, other in combinations(shown, 2):
        common = set(shown[one]) & set(shown[other])
        left = [event for event in shown[one] if event in common]
        right = [event for event in shown[other] if event in common]
        at = next((at for at, pair in enumerate(zip(left, right, strict=True)) if len({*pair}) > 1), None)
        assert at is None, f"{one} and {other} disagree from {left[at]} and {right[at]} on"


def check_complete(shown: Sequence[Hashable], wanted: Iterable[Hashable]) -> None:
    """All that was wanted was shown, and nothing else."""
    missing, others = set(wanted) - set(shown), set(shown) - set(wanted)
    assert not missing, f"{len(missing)} events are missing, among them {min(map(str, missing))}"
    assert not others, f"{len(others)} events are not wanted, among them {min(map(str, others))}"


def check_causes(
    shown: Mapping[str, Sequence[Hashable]], causes: Mapping[Hashable, Iterable[Hashable]]
) -> None:
    """Nobody is shown an event before one of its causes that is shown there, too."""
    for name, events in shown.items():
        position = {event: at for at, event in enumerate(events)}
        for event, at in position.items():
            for cause in causes.get(event, ()):
                assert position.get(cause, -1) < at, f"{name} was shown {event} before its cause {cause}"
