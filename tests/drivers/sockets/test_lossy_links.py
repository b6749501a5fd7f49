"""Links that lose on purpose: as often as asked, each by itself, and the same again with the same seed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.drivers import lossy
from tidings.drivers.lossy import LossyLinks
from tidings.scenarios.file.schema import BernoulliLoss, GilbertLoss, Loss, NoLoss

LOSSES: tuple[Loss, ...] = (BernoulliLoss(rate=0.3), GilbertLoss(rate=0.3, burst=4))


def drawn(links: LossyLinks, link: str, count: int = 200) -> list[bool]:
    return [links.loses(link) for _ in range(count)]


def test_so_much_is_lost_as_was_asked_for() -> None:
    for loss in LOSSES:
        links = LossyLinks(loss, seed=1)
        lost = sum(drawn(links, "a>b", 20_000))
        assert 0.27 < lost / 20_000 < 0.33
        assert links.lost == lost


def test_bursts_are_as_long_as_was_asked_for() -> None:
    text = "".join("x" if lost else " " for lost in drawn(LossyLinks(LOSSES[1], seed=2), "a>b", 20_000))
    bursts = text.split()
    assert 3.5 < sum(map(len, bursts)) / len(bursts) < 4.5


def test_nothing_is_lost_where_nothing_is_to_be() -> None:
    for loss in (NoLoss(), BernoulliLoss(rate=0.0)):
        assert not any(drawn(LossyLinks(loss), "a>b"))


@settings(max_examples=examples(30))
@given(st.sampled_from(LOSSES), st.integers(), st.lists(st.sampled_from("abc"), max_size=300))
def test_a_link_draws_the_same_whatever_passes_on_others(loss: Loss, seed: int, order: list[str]) -> None:
    mixed, found = LossyLinks(loss, seed), dict[str, list[bool]]()
    for link in order:
        found.setdefault(link, []).append(mixed.loses(link))
    for link, losses in found.items():
        assert drawn(LossyLinks(loss, seed), link, len(losses)) == losses


def test_links_and_seeds_differ() -> None:
    runs = [drawn(LossyLinks(LOSSES[0], seed), link) for seed in (1, 2) for link in ("a>b", "b>a")]
    assert all(runs.count(run) == 1 for run in runs)
    assert drawn(LossyLinks(LOSSES[0]), "a>b") != drawn(LossyLinks(LOSSES[0]), "a>b")


def test_peers_without_number_fill_no_memory(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(lossy, "MAX_CHANNELS", 10)
    links = LossyLinks(LOSSES[0], seed=1)
    for number in range(1_000):
        links.loses(str(number))
        assert len(links._channels) <= 10
