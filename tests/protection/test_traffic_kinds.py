"""The names of messages in a trace belong to its format, whatever the classes are called."""

from __future__ import annotations

from golden import check_golden
from tidings.core.events.event import Publication
from tidings.core.wire.codec import CARRIERS, message_classes
from tidings.scenarios.trace.traffic_kinds import TRAFFIC_KINDS, traffic_kind


def test_the_kinds_are_those_of_earlier_traces() -> None:
    check_golden("traffic_kinds.txt", [f"{tag} {kind}" for tag, kind in TRAFFIC_KINDS.items()])


def test_every_message_has_one_kind_of_its_own() -> None:
    classes = (Publication, *message_classes(), *CARRIERS)
    assert not [cls.__name__ for cls in classes if cls.__struct_config__.tag not in TRAFFIC_KINDS]
    kinds = [traffic_kind(cls) for cls in classes]
    assert sorted(kinds) == sorted(TRAFFIC_KINDS.values())
    assert len(set(kinds)) == len(kinds)


def test_a_renamed_class_keeps_its_kind() -> None:
    renamed = type("Renamed", (CARRIERS[0],), {}, tag=CARRIERS[0].__struct_config__.tag)
    assert traffic_kind(renamed) == traffic_kind(CARRIERS[0]) == "notify"
