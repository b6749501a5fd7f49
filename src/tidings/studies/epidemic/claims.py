"""What the epidemic paper claims about its algorithms (sections 2.2, 4.2 and 5), checked against our runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidings.studies.epidemic.points import (
    MORE_PATTERNS,
    RECOVERING,
    SLOW_MS,
    SMALL_BUFFER,
    Base,
    more_patterns,
    where,
)
from tidings.studies.estimates import (
    BySeed,
    Estimate,
    StudyRows,
    above,
    below,
    both,
    claimed,
    difference,
    estimate,
    inside,
    pooled,
    sure,
)
from tidings.studies.study import PaperClaim

PULLS = ("subscriber pull", "publisher pull", "combined pull")
LOW_COST = 2.0
"""'Limited overhead': at most this many times the messages of the tree alone."""
SAME = 0.25
"""'Not' or 'the same': a relative difference of less than this."""
CLOSE = 0.05
"""The same for shares, in absolute terms."""


def claims(results: StudyRows, base: Base) -> list[PaperClaim]:
    return [claim(Runs(results, base)) for claim in CLAIMS]


class Runs:
    """The runs of the study, selected by what they change of the base."""

    def __init__(self, results: StudyRows, base: Base) -> None:
        self.results, self.base = results, base

    def by_seed(self, column: str, algorithm: str, **changes: Any) -> dict[int, float]:
        return self.results.by_seed(column, **where(self.base, algorithm=algorithm, **changes))

    def mean(self, column: str, algorithm: str, **changes: Any) -> Estimate:
        return estimate(list(self.by_seed(column, algorithm, **changes).values()))

    def percent(self, column: str, algorithm: str, **changes: Any) -> str:
        return f"{algorithm} {100 * self.mean(column, algorithm, **changes).mean:.1f} %"

    def pair(self, column: str, left: str, right: str, **changes: Any) -> tuple[BySeed, BySeed]:
        return self.by_seed(column, left, **changes), self.by_seed(column, right, **changes)

    def losses(self) -> list[float]:
        """Return the loss rates of the sweep, except 0."""
        found = self.results.distinct("loss", **where(self.base, "loss", algorithm="none"))
        return [loss for loss in found if loss > 0]

    @property
    def loss_percent(self) -> str:
        return f"{100 * self.base['loss']:.0f} % loss"


def ratio(left: BySeed, right: BySeed) -> Estimate:
    return estimate([left[seed] / right[seed] for seed in sorted(left.keys() & right.keys()) if right[seed]])


def delivery_rises(runs: Runs) -> PaperClaim:
    gains = [
        pooled([runs.pair("delivered", name, "none", loss=x) for x in runs.losses()]) for name in RECOVERING
    ]
    details = ", ".join(runs.percent("delivered", name) for name in ("none", *RECOVERING))
    return claimed(
        "section 5",
        "every algorithm improves delivery markedly",
        "a remarkable improvement",
        f"at {runs.loss_percent}: {details}",
        both(*(above(gain) for gain in gains)),
    )


def overhead_is_limited(runs: Runs) -> PaperClaim:
    quiet = runs.by_seed("overhead", "none", loss=0.0)
    costs = {name: ratio(runs.by_seed("overhead", name), quiet) for name in RECOVERING}
    details = ", ".join(f"{name} {cost.text()}" for name, cost in costs.items())
    return claimed(
        "section 5",
        "the algorithms have only a limited overhead",
        f"'limited', read as at most {LOW_COST:.0f} times the messages of the tree alone",
        f"at {runs.loss_percent}, relative to the messages of a tree without loss: {details}",
        both(*(below(cost, LOW_COST) for cost in costs.values())),
        why="we count messages, not bytes, until long after the last event: push gossips all that time, and subscriber"
        " pull keeps asking for events that no other subscriber has",
    )


def pull_is_reactive(runs: Runs) -> PaperClaim:
    sent = {name: runs.mean("gossip_per_broker_s", name, loss=0.0).mean for name in PULLS}
    push = runs.mean("gossip_per_broker_s", "push", loss=0.0)
    housekeeping = runs.mean("housekeeping_per_broker_s", "publisher pull", loss=0.0).mean
    return claimed(
        "section 2.2",
        "without losses pull is silent, while push keeps gossiping and wastes bandwidth",
        "pull triggers only when an event is lost",
        f"messages per broker and second without loss: pulls {max(sent.values()):.1f}, push {push.text()}",
        both(sure(not any(sent.values())), above(push)),
        note=f"our brokers also send neighbours each pattern's last sequence number ({housekeeping:.1f} messages per"
        " broker and second during publication); otherwise the loss of a last event would go unnoticed",
    )


def reactive_is_cheaper_in_bursts(runs: Runs) -> PaperClaim:
    burst = {"bursts": True, "loss": 0.0}
    pairs = [runs.pair("gossip_per_broker_s", "push", name, **burst) for name in PULLS]
    means = {name: runs.mean("gossip_per_broker_s", name, **burst) for name in ("push", *PULLS)}
    details = ", ".join(f"{name} {mean.mean:.1f}" for name, mean in means.items())
    return claimed(
        "section 5",
        "when losses come in bursts, the reactive pulls cause less traffic than push",
        "reactive approaches perform better",
        f"messages per broker and second with a burst of losses half-way: {details}",
        both(*(above(difference(left, right)) for left, right in pairs)),
    )


def pull_converges_faster(runs: Runs) -> PaperClaim:
    pairs = {
        name: pooled([runs.pair("recovery_ms", "push", name, loss=loss) for loss in runs.losses()])
        for name in PULLS
    }
    details = ", ".join(f"{name} {runs.mean('recovery_ms', name).mean:.0f} ms" for name in ("push", *PULLS))
    return claimed(
        "section 2.2",
        "pull recovers events faster than push if most brokers have them",
        "pull converges faster",
        f"mean latency of recovered events at {runs.loss_percent}: {details}",
        both(*(above(gain) for gain in pairs.values())),
        why="the mean covers recovered events only, over all loss rates; at high rates most brokers on a path also"
        " lack the event",
    )


def few_subscribers_hurt_pull(runs: Runs) -> PaperClaim:
    def recovered(name: str, each: int) -> dict[int, float]:
        return runs.by_seed("recovered", name, patterns_per_broker=each)

    pull = difference(recovered("subscriber pull", 6), recovered("subscriber pull", 1))
    push = difference(recovered("push", 6), recovered("push", 1))
    few, many = (runs.base["brokers"] * each / runs.base["patterns"] for each in (1, 6))
    details = "; ".join(
        f"{name} {100 * estimate(list(recovered(name, 1).values())).mean:.0f} %"
        f" and {100 * estimate(list(recovered(name, 6).values())).mean:.0f} %"
        for name in ("subscriber pull", "push")
    )
    return claimed(
        "section 5",
        "pull needs several subscribers of a pattern, push does not",
        "critical for pull, does not affect push significantly",
        f"recovered with {few:.1f} and {many:.1f} subscribers per pattern: {details}",
        both(above(pull), inside(push, -CLOSE, CLOSE)),
        note=f"for subscriber pull; 'not significantly' is read as less than {100 * CLOSE:.0f} percentage points",
    )


def combined_overcomes_it(runs: Runs) -> PaperClaim:
    pairs = [
        runs.pair("recovered", "combined pull", "subscriber pull", patterns_per_broker=n) for n in (1, 2)
    ]
    details = ", ".join(
        f"{name} {100 * runs.mean('recovered', name, patterns_per_broker=1).mean:.0f} %"
        for name in ("subscriber pull", "combined pull")
    )
    return claimed(
        "section 5",
        "combined with publisher pull, subscriber pull also recovers events that have few subscribers",
        "improves the chances to recover an event",
        f"recovered with {runs.base['brokers'] / runs.base['patterns']:.1f} subscribers per pattern: {details}",
        above(pooled(pairs)),
    )


def patterns_slow_push(runs: Runs) -> PaperClaim:
    usual = runs.by_seed("recovery_ms", "push")
    more = runs.by_seed("recovery_ms", **more_patterns(runs.base, MORE_PATTERNS * runs.base["patterns"]))
    slower = ratio(more, usual)
    return claimed(
        "section 5",
        "the more patterns, the longer push takes to recover an event",
        "the more the patterns, the bigger the latency",
        f"{MORE_PATTERNS} times the patterns, with the same number of subscribers each: {slower.text(2)} times the"
        " latency",
        above(slower, 1.0),
    )


def idle_patterns_do_not(runs: Runs) -> PaperClaim:
    usual = runs.by_seed("recovery_ms", "push")
    idle = runs.by_seed("recovery_ms", **more_patterns(runs.base, runs.base["patterns"]))
    slower = ratio(idle, usual)
    return claimed(
        "section 5",
        "what slows push is not the sheer number of patterns, but the number of patterns that events match",
        "not the sheer number of patterns in the system",
        f"{MORE_PATTERNS} times the patterns, events matching as many as before: {slower.text(2)} times the latency",
        inside(slower, 1 - SAME, 1 + SAME),
        why="a broker forwards digests of all patterns that any event matches, and here an event matches one",
        note=f"'not' is read as less than {100 * SAME:.0f} %; our brokers choose among patterns with cached events",
    )


def larger_buffers_help(runs: Runs) -> PaperClaim:
    small = {"buffer_events": SMALL_BUFFER}
    gains = [
        difference(runs.by_seed("delivered", name), runs.by_seed("delivered", name, **small))
        for name in RECOVERING
    ]
    details = ", ".join(
        f"{name} {100 * runs.mean('delivered', name, **small).mean:.0f} to"
        f" {100 * runs.mean('delivered', name).mean:.0f} %"
        for name in RECOVERING
    )
    return claimed(
        "section 5",
        "a larger buffer improves delivery",
        "events persist longer in the cache",
        f"from {SMALL_BUFFER} to {runs.base['buffer_events']:,} events: {details}",
        both(*(above(gain) for gain in gains)),
    )


def buffers_for_rounds(runs: Runs) -> PaperClaim:
    quick_small = {"buffer_events": SMALL_BUFFER}
    slow_large = {"interval_ms": SLOW_MS}
    slow_small = {**quick_small, **slow_large}

    def of(**changes: Any) -> dict[int, float]:
        return runs.by_seed("delivered", "push", **changes)

    gossip = ratio(
        runs.by_seed("gossip_per_broker_s", "push", **slow_large),
        runs.by_seed("gossip_per_broker_s", "push", **quick_small),
    )
    even = difference(of(**slow_large), of(**quick_small))
    details = ", ".join(
        f"{label} {100 * estimate(list(of(**changes).values())).mean:.0f} %"
        for label, changes in (
            (f"{runs.base['interval_ms']:.0f} ms and {SMALL_BUFFER} events", quick_small),
            (f"{SLOW_MS:.0f} ms and {SMALL_BUFFER}", slow_small),
            (f"{SLOW_MS:.0f} ms and {runs.base['buffer_events']:,}", slow_large),
        )
    )
    return claimed(
        "section 5",
        "a larger buffer makes up for less frequent gossip: storage replaces communication",
        "enables less frequent gossiping",
        f"push delivers, by interval and buffer: {details}; gossip of the last {gossip.text(2)} times that of"
        " the first",
        both(
            above(difference(of(**slow_large), of(**slow_small))),
            above(difference(of(**quick_small), of(**slow_small))),
            above(even, -CLOSE),
            below(gossip, 1.0),
        ),
        why="the buffer does not make up for everything before the run ends",
    )


def cache_policies_help(runs: Runs) -> PaperClaim:
    def of(policy: str) -> dict[int, float]:
        return runs.by_seed("delivered", "combined pull", buffer_events=SMALL_BUFFER, cache_policy=policy)

    gains = {policy: difference(of(policy), of("fifo")) for policy in ("foreign-first", "random")}
    details = ", ".join(
        f"{policy} {100 * estimate(list(of(policy).values())).mean:.1f} %"
        for policy in ("fifo", "foreign-first", "random")
    )
    return claimed(
        "section 5",
        "a cache that evicts foreign events first, or at random, improves delivery",
        "the situation can be improved by refined policies",
        f"combined pull with {SMALL_BUFFER} events: {details}",
        both(*(above(gain) for gain in gains.values())),
    )


def adapting_saves(runs: Runs) -> PaperClaim:
    slow = {"interval_ms": SLOW_MS}
    adaptive = {**slow, "adaptive": True}
    resting = ratio(
        runs.by_seed("resting_gossip_per_broker_s", "push", **adaptive),
        runs.by_seed("resting_gossip_per_broker_s", "push"),
    )
    gain = difference(
        runs.by_seed("delivered", "push", **adaptive), runs.by_seed("delivered", "push", **slow)
    )
    return claimed(
        "section 5",
        "an adaptive interval removes push's waste when nothing is lost, and still recovers events",
        "removes this potential source of inefficiency",
        f"when idle, {resting.text(2)} of the gossip of {runs.base['interval_ms']:.0f} ms rounds; delivery"
        f" {100 * gain.mean:+.1f} percentage points compared with {SLOW_MS:.0f} ms rounds",
        both(below(resting, 0.5), above(gain)),
    )


def load_stays(runs: Runs) -> PaperClaim:
    free = ("brokers", "patterns", "used_patterns", "publishers")
    chosen = where(runs.base, *free, algorithm="push")
    sizes = runs.results.distinct("brokers", **chosen)
    least, most = (scaled(runs, size) for size in (sizes[0], sizes[-1]))
    growth = ratio(most, least)
    return claimed(
        "section 2.2",
        "the gossip load of a broker stays the same as the network grows",
        "constant",
        f"push, {sizes[0]} to {sizes[-1]} brokers: {growth.text(2)} times the messages per broker",
        below(growth, 1 + SAME),
        why="digests go along the tree, whose paths get longer",
        note=f"'the same' is read as less than {100 * SAME:.0f} % more",
    )


def scaled(runs: Runs, brokers: int) -> dict[int, float]:
    """Return the gossip of push in a network of this size with the base's load per broker."""
    free = ("brokers", "patterns", "used_patterns", "publishers")
    patterns = runs.base["patterns"] * brokers // runs.base["brokers"]
    chosen = where(
        runs.base, *free, algorithm="push", brokers=brokers, patterns=patterns, used_patterns=patterns
    )
    return runs.results.by_seed("gossip_per_broker_s", **chosen)


def load_is_even(runs: Runs) -> PaperClaim:
    peaks = {name: runs.mean("peak_load", name) for name in RECOVERING}
    details = ", ".join(f"{name} {peak.text()}" for name, peak in peaks.items())
    return claimed(
        "section 2.2",
        "gossip loads all brokers equally",
        "equally distributed",
        f"messages of the busiest broker relative to the mean: {details}",
        both(*(below(peak, 2.0) for peak in peaks.values())),
        why="the paper refers to gossip among equals; along a tree the inner brokers forward what the others gossip",
        note="'equally' is read as less than twice the mean",
    )


def publisher_is_spared(runs: Runs) -> PaperClaim:
    share = runs.mean("origin_answers", "publisher pull")
    homes = runs.base["publishers"] / runs.base["brokers"]
    return claimed(
        "section 4.2",
        "publisher pull does not overload the publisher: the first holder on the path answers",
        "retransmissions by the first dispatcher that holds the event",
        f"publishers' brokers ({100 * homes:.0f} % of all) give"
        f" {Estimate(100 * share.mean, 100 * share.low, 100 * share.high).text(0)} % of the answers",
        below(share, 0.5),
        why="only the publisher's broker has an event that the first link lost; requests also go straight there while"
        " no route is known, and one in five always does, since a known route may be broken",
        note="'not overloaded' is read as less than half of the answers",
    )


CLAIMS: tuple[Callable[[Runs], PaperClaim], ...] = (
    pull_is_reactive,
    pull_converges_faster,
    load_stays,
    load_is_even,
    publisher_is_spared,
    delivery_rises,
    overhead_is_limited,
    few_subscribers_hurt_pull,
    combined_overcomes_it,
    patterns_slow_push,
    idle_patterns_do_not,
    larger_buffers_help,
    buffers_for_rounds,
    cache_policies_help,
    reactive_is_cheaper_in_bursts,
    adapting_saves,
)
