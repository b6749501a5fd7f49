"""The placement against all placements of small systems, against an independent count, and on clients it never saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations, pairwise, permutations, product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.core.ordering.placement import Placement, place
from tidings.core.ordering.stamps import Chain

Client = tuple[int, Sequence[int]]
SITES = 3
TOPICS = 9

clients_of_three_sites = st.lists(
    st.tuples(st.integers(0, SITES - 1), st.lists(st.integers(0, TOPICS - 1), max_size=4, unique=True)),
    max_size=25,
)


def local_share(
    topics: Sequence[int], sites: Sequence[int], clients: Sequence[Client], threshold: int = 2
) -> float:
    """By subscribers, from the definition: no topic of the group stands at a site further up."""
    shared = Counter(pair for _, wanted in clients for pair in combinations(sorted(wanted), 2))
    weight = Counter(topic for _, wanted in clients for topic in wanted)
    chain = list(dict.fromkeys(sites))
    position = {topic: chain.index(site) for topic, site in zip(topics, sites, strict=True)}
    climbing = set()
    for pair, count in shared.items():
        if count >= threshold and position[pair[0]] != position[pair[1]]:
            climbing.add(max(pair, key=position.__getitem__))
    total = sum(weight.values())
    return 1 - sum(weight[topic] for topic in climbing) / total if total else 1.0


def is_contiguous(placement: Placement[int]) -> bool:
    return sum(one != other for one, other in pairwise(placement.sites)) == len(set(placement.sites)) - 1


@given(clients_of_three_sites, st.sampled_from([1, 2]), st.sampled_from([0.0, 0.1, 1.0]))
@settings(max_examples=300, deadline=None)
def test_every_topic_has_one_place_and_the_expected_share_is_what_the_definition_says(
    clients: list[Client], threshold: int, rare_share: float
) -> None:
    placement = place(range(TOPICS), clients, SITES, threshold=threshold, rare_share=rare_share)
    assert sorted(placement.topics) == list(range(TOPICS))
    assert is_contiguous(placement)
    assert placement.local == pytest.approx(
        local_share(placement.topics, placement.sites, clients, threshold)
    )
    assert placement.crossings >= 0


@given(clients_of_three_sites)
@settings(max_examples=100, deadline=None)
def test_the_starts_make_a_chain(clients: list[Client]) -> None:
    placement = place(range(TOPICS), clients, SITES)
    starts = placement.starts()
    chain = Chain([f"site {site}" for site in starts], list(starts.values()), TOPICS)
    for rank, site in enumerate(placement.sites):
        assert chain.server_of(rank) == f"site {site}"


def small_system(seed: int) -> list[Client]:
    """Two sites with two popular topics each, and clients that stray."""
    random = Random(seed)
    clients: list[Client] = []
    for site in (0, 1):
        own = [3 * site, 3 * site + 1]
        clients += [(site, own) for _ in range(6)]
        clients += [(site, sorted({*own, random.randrange(6)})) for _ in range(5)]
    return clients


@pytest.mark.parametrize("seed", range(12))
def test_no_order_with_the_popular_topics_at_home_has_more_stamps_within_one_site(seed: int) -> None:
    clients = small_system(seed)
    placement = place(range(6), clients, 2, rare_share=0.0)
    best = 0.0
    popular = {0: 0, 1: 0, 3: 1, 4: 1}
    for chain, rest in product(permutations((0, 1)), product((0, 1), repeat=2)):
        site_of = {**popular, 2: rest[0], 5: rest[1]}
        order = sorted(site_of, key=lambda topic: chain.index(site_of[topic]))
        best = max(best, local_share(order, [site_of[topic] for topic in order], clients))
    assert placement.local >= best - 1e-9


def test_two_stray_clients_do_not_make_a_popular_topic_climb() -> None:
    """Sites 0 and 1 have a popular topic each; two clients of site 1 also want a rare one of site 0."""
    clients: list[Client] = [(0, [0])] * 20 + [(0, [0, 1])] * 3 + [(1, [2])] * 20 + [(1, [1, 2])] * 2
    identifiers = local_share([0, 1, 2], [0, 0, 1], clients)
    placement = place(range(3), clients, 2)
    assert identifiers < 0.6
    assert placement.local > 0.85
    assert dict(zip(placement.topics, placement.sites, strict=True))[0] == 0


def test_rare_topics_give_way_where_no_order_of_the_sites_would_do() -> None:
    """Clients of each site stray to a rare topic (3 to 5) of the next: some popular one (0 to 2) is below it."""
    clients: list[Client] = []
    for site in range(3):
        clients += (
            [(site, [site])] * 20 + [(site, [site, 3 + site])] * 3 + [(site, [site, 3 + (site + 1) % 3])] * 2
        )
    at_home = [
        local_share([0, 3, 1, 4, 2, 5], [0, 0, 1, 1, 2, 2], clients),
        local_share([2, 5, 1, 4, 0, 3], [2, 2, 1, 1, 0, 0], clients),
    ]
    placement = place(range(6), clients, 3, rare_share=0.0)
    rare_weight = 15 / 90
    assert max(at_home) < 0.75
    assert placement.local >= 1 - rare_weight
    site_of = dict(zip(placement.topics, placement.sites, strict=True))
    assert [site_of[topic] for topic in range(3)] == [0, 1, 2]


def crossings(chain: Sequence[int], site_of: Sequence[int], clients: Sequence[Client]) -> float:
    """Messages between sites per stamp, from the definition; publishers are where subscribers are."""
    shared = Counter(frozenset(pair) for _, wanted in clients for pair in combinations(wanted, 2))
    wanted_at = Counter((topic, site) for site, wanted in clients for topic in wanted)
    crossed = 0
    for (topic, site), count in wanted_at.items():
        here = highest = chain.index(site_of[topic])
        for pair, together in shared.items():
            if topic in pair and together >= 2:
                highest = min(highest, *(chain.index(site_of[other]) for other in pair))
        crossed += count * ((site != chain[here]) + here - highest + (site != chain[highest]))
    return crossed / sum(wanted_at.values())


def test_messages_between_sites_are_near_the_fewest_of_all_layouts() -> None:
    """All layouts: every order of the sites, and of every topic whether it is at home or at the end."""
    placed, fewest, at_home = 0.0, 0.0, 0.0
    for seed in range(15):
        clients = strays(Random(seed), 3, 2, 14)
        wanted_at = Counter((topic, site) for site, wanted in clients for topic in wanted)
        homes = [max(range(3), key=lambda site, topic=topic: wanted_at[topic, site]) for topic in range(6)]
        layouts = {
            (chain, tuple(chain[-1] if sinks else home for home, sinks in zip(homes, sunk, strict=True)))
            for chain in permutations(range(3))
            for sunk in product((False, True), repeat=6)
        }
        placement = place(range(6), clients, 3, rare_share=0.0)
        chain = [*placement.starts(), *(site for site in range(3) if site not in placement.sites)]
        site_of = dict(zip(placement.topics, placement.sites, strict=True))
        assert placement.crossings == pytest.approx(
            crossings(chain, [site_of[topic] for topic in range(6)], clients)
        )
        placed += placement.crossings
        fewest += min(crossings(*layout, clients) for layout in layouts)
        at_home += crossings((0, 1, 2), homes, clients)
    assert placed < 1.2 * fewest < at_home


def test_without_pairs_across_sites_everything_stays_at_home() -> None:
    clients: list[Client] = [(site, [2 * site, 2 * site + 1]) for site in range(3) for _ in range(5)]
    placement = place(range(6), clients, 3)
    assert (placement.local, placement.crossings) == (1.0, 0.0)
    assert all(site == topic // 2 for topic, site in zip(placement.topics, placement.sites, strict=True))


def test_what_nobody_wants_stands_at_the_end_where_it_hinders_nobody() -> None:
    clients: list[Client] = [(site, [site]) for site in range(3) for _ in range(5)]
    placement = place(range(8), clients, 3)
    assert set(placement.topics[-5:]) == {3, 4, 5, 6, 7}
    assert len(set(placement.sites[-5:])) == 1


def strays(random: Random, sites: int, own: int, count: int) -> list[Client]:
    """Each site's clients want its own topics, the first ones most, and seldom any other."""
    clients: list[Client] = []
    for site in range(sites):
        for _ in range(count):
            wanted = {site * own + min(int(random.paretovariate(0.9)) - 1, own - 1) for _ in range(6)}
            if random.random() < 0.1:
                wanted.add(random.randrange(sites * own))
            clients.append((site, sorted(wanted)))
    return clients


def test_a_placement_holds_for_clients_that_it_was_not_made_for() -> None:
    """With nothing kept at the end for being rare it fits its own clients, and by chance."""
    robust, fitted = [], []
    for seed in range(6):
        random = Random(seed)
        clients, others = strays(random, 4, 60, 120), strays(random, 4, 60, 120)
        for rare_share, shares in ((0.1, robust), (0.0, fitted)):
            placement = place(range(240), clients, 4, rare_share=rare_share)
            shares.append(local_share(placement.topics, placement.sites, others))
    assert sum(robust) > sum(fitted)


def test_rates_decide_which_of_two_topics_stays() -> None:
    """The pair (0, 1) is in one group across the sites; that which is published on less has to give way."""
    clients: list[Client] = [(0, [0])] * 9 + [(1, [1])] * 9 + [(0, [0, 1])] * 2
    for busy, quiet in ((0, 1), (1, 0)):
        placement = place(range(2), clients, 2, rates={busy: 100.0, quiet: 1.0}, rare_share=0.0)
        assert placement.local == pytest.approx(100 / 101)


def test_the_same_input_gives_the_same_placement_whatever_the_order_of_clients() -> None:
    clients = strays(Random(1), 4, 20, 40)
    shuffled = list(clients)
    Random(2).shuffle(shuffled)
    assert place(range(80), clients, 4) == place(range(80), shuffled, 4)


def test_topics_may_be_names_and_there_may_be_one_site_or_nothing_at_all() -> None:
    placement = place(["/a", "/b"], [(0, ["/b"])], 1)
    assert (placement.topics, placement.sites) == (("/b", "/a"), (0, 0))
    assert place([], [], 2).topics == ()


@pytest.mark.parametrize(
    ("topics", "clients", "sites", "options", "said"),
    [
        (["/a"], [], 0, {}, "0 sites"),
        (["/a", "/a"], [], 1, {}, "distinct topics"),
        (["/a"], [(1, ["/a"])], 1, {}, "site 1 of 1"),
        (["/a"], [(0, ["/b"])], 1, {}, "unknown topics ['/b']"),
        (["/a"], [], 1, {"rates": {"/b": 1.0}}, "'/b'"),
        (["/a"], [], 1, {"rates": {"/a": float("nan")}}, "nan"),
        (["/a"], [], 1, {"rates": {"/a": -1.0}}, "-1.0"),
        (["/a"], [], 1, {"rare_share": 2.0}, "rare_share 2.0"),
        (["/a"], [], 1, {"threshold": 3}, "threshold 3"),
    ],
)
def test_bad_input_is_named(topics, clients, sites, options, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError) as error:
        place(topics, clients, sites, **options)
    assert said in str(error.value)
