"""Neighbourhoods against a twin that looks at every known broker for every question."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.overlay.guaranteed import neighbourhood
from tidings.core.overlay.guaranteed.neighbourhood import Neighbourhood
from tidings.core.overlay.labels import Label, distance, label_text, path

TREE = [(0, *rest) for depth in range(4) for rest in product(range(3), repeat=depth)]
FAR = [(0, 7, 7, 7, 7), (0, 0, 0, 0, 0), (0, 2, 2, 2, 1, 0)]
"""Targets that need not be brokers anybody here has heard of."""


class Twin:
    """The known brokers as a plain dictionary, name -> (label, address)."""

    def __init__(self, name: str, label: Label, reach: int) -> None:
        self.name, self.label, self.reach = name, label, reach
        self.known: dict[str, tuple[Label, str]] = {}

    def add(self, name: str, label: Label, address: str) -> bool | None:
        """None where the real one must refuse."""
        if name in self.known:
            known_label, known_address = self.known[name]
            if label != known_label:
                return None
            address = address or known_address
        elif (
            name == self.name or label in self.labels() or not 1 <= distance(self.label, label) <= self.reach
        ):
            return None
        news = self.known.get(name) != (label, address)
        self.known[name] = (label, address)
        return news

    def labels(self) -> list[Label]:
        return [label for label, _ in self.known.values()]

    def where(self, wanted: Callable[[Label], bool]) -> list[str]:
        found = [(label, name) for name, (label, _) in self.known.items() if wanted(label)]
        return [name for _, name in sorted(found)]

    def primary(self) -> list[str]:
        return self.where(lambda label: distance(self.label, label) == 1)

    def behind(self, name: str) -> list[str]:
        at = self.known[name][0]
        far = distance(self.label, at) + 1
        return self.where(lambda label: at in path(self.label, label) and distance(self.label, label) == far)

    def towards(self, target: Label) -> list[str]:
        names = {label: name for name, (label, _) in self.known.items()}
        return [names[label] for label in path(self.label, target) if label in names]


def check(real: Neighbourhood, twin: Twin) -> None:
    assert list(real) == list(twin.known)
    assert len(real) == len(twin.known)
    assert list(real.primary) == twin.primary()
    for name, (label, address) in twin.known.items():
        assert name in real
        assert (real.label_of(name), real.name_of(label), real.address_of(name)) == (label, name, address)
        assert list(real.behind(name)) == twin.behind(name)
    for label in TREE + FAR:
        assert list(real.towards(label)) == twin.towards(label)
        assert list(real.towards(label)) == twin.towards(label)  # from the cache
        assert (real.name_of(label) is not None) == (label in twin.labels())


Step = tuple[str, Label, str] | str
"""A broker to add with its label and address, or the name of one to remove."""


def run(own: Label, reach: int, steps: list[Step]) -> None:
    real, twin = Neighbourhood("me", own, reach), Twin("me", own, reach)
    for step in steps:
        if isinstance(step, str):
            if step in twin.known:
                real.remove(step)
                del twin.known[step]
            else:
                with pytest.raises(KeyError):
                    real.remove(step)
        else:
            expected = twin.add(*step)
            try:
                assert real.add(*step) == expected
            except ValueError:
                assert expected is None
        check(real, twin)


def text(label: Label) -> str:
    return f"b{label_text(label)}"


labels = st.sampled_from(TREE)
honest = st.tuples(labels, st.sampled_from(["", "here:1", "there:2"])).map(lambda at: (text(at[0]), *at))
confused = st.tuples(st.sampled_from(["me", "b0", "b0.1", "x"]), labels, st.just(""))
steps = st.lists(honest | honest | honest | confused | labels.map(text), max_size=14)


@given(labels, st.integers(1, 4), steps)
@settings(max_examples=examples(150))
def test_every_answer_is_what_a_search_gives(own: Label, reach: int, steps: list[Step]) -> None:
    run(own, reach, steps)


def test_a_whole_tree() -> None:
    run((0, 1), 3, [(text(label), label, "") for label in TREE if 1 <= distance(label, (0, 1)) <= 3])


def example() -> Neighbourhood:
    near = Neighbourhood("me", (0, 1), 2)
    for name, label in [("low", (0, 1, 1)), ("root", (0,)), ("side", (0, 0)), ("low0", (0, 1, 0))]:
        assert near.add(name, label, f"{name}:1")
    return near


def test_who_is_where() -> None:
    near = example()
    assert list(near.primary) == ["root", "low0", "low"]
    assert near.behind("root") == ("side",)
    assert near.behind("low") == ()
    assert near.towards((0, 0, 3, 3)) == ("root", "side")
    assert near.towards((0, 1)) == ()
    near.remove("root")
    assert list(near.primary) == ["low0", "low"]
    assert near.towards((0, 0, 3, 3)) == ("side",)
    for question in (near.behind, near.label_of, near.address_of, near.remove):
        with pytest.raises(KeyError):
            question("root")
    assert near.name_of((0,)) is None


def test_only_news_are_news() -> None:
    near = example()
    assert not near.add("low", (0, 1, 1), "low:1")
    assert not near.add("low", (0, 1, 1))
    assert near.address_of("low") == "low:1"
    assert near.add("low", (0, 1, 1), "low:2")
    assert near.address_of("low") == "low:2"


@pytest.mark.parametrize(
    ("name", "label", "complaint"),
    [
        ("new", (0, 1, 1), r"label 0\.1\.1 of broker 'new' is taken by 'low'"),
        ("low", (0, 1, 2), r"broker 'low' is known at 0\.1\.1, not 0\.1\.2"),
        ("new", (0, 0, 0), "broker 'new' is at distance 3, beyond the reach of 2"),
        ("me", (0, 2), "'me' is this broker's own name"),
        ("new", (0, 1), r"0\.1 is this broker's own label, not that of 'new'"),
    ],
)
def test_contradictions_are_refused_and_change_nothing(name: str, label: Label, complaint: str) -> None:
    near = example()
    before = list(near)
    with pytest.raises(ValueError, match=complaint):
        near.add(name, label)
    assert list(near) == before
    assert near.name_of((0, 1, 1)) == "low"


def test_a_reach_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Neighbourhood("me", (0,), 0)


def test_the_cache_of_targets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbourhood, "MAX_CACHED_TARGETS", 10)
    near = example()
    for child in range(100):
        assert near.towards((0, 0, child)) == ("root", "side")
        assert len(near._towards) <= 10


def forget_nothing(near: Neighbourhood, label: Label) -> None:
    """The bug: answers from before a change are given after it."""
    labels = sorted(near.label_of(name) for name in near)
    near.primary = tuple(text(other) for other in labels if distance(near.label, other) == 1)


def whole_path(near: Neighbourhood, target: Label) -> list[str]:
    """The bug: the first hop is skipped together with this broker itself."""
    return [name for label in path(near.label, target)[2:] if (name := near.name_of(label))]


def all_behind(near: Neighbourhood, name: str) -> tuple[str, ...]:
    """The bug: everybody behind, not only those one step further."""
    at = near.label_of(name)
    return tuple(other for other in near if other != name and at in path(near.label, near.label_of(other)))


@pytest.mark.parametrize(
    ("method", "bug"), [("_changed", forget_nothing), ("_walk", whole_path), ("behind", all_behind)]
)
def test_planted_bugs_are_caught(
    method: str, bug: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_many() -> None:
        random = Random(3)
        for _ in range(10):
            brokers = random.sample(TREE, 12)
            run(brokers[0], 3, [(text(label), label, "") for label in brokers[1:]])

    check_many()
    monkeypatch.setattr(Neighbourhood, method, bug)
    with pytest.raises(AssertionError):
        check_many()
