"""The estimate of a link's loss, over channels of known rates and against counts that are lost or forged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from recording_port import RecordingPort
from tidings.core.overlay.epidemic import link_loss
from tidings.core.overlay.epidemic.link_loss import LinkLoss, LossEstimate, least_move
from tidings.core.overlay.epidemic.messages import LinkCount
from tidings.scenarios.file.channels import loss_sampler
from tidings.scenarios.file.schema import BernoulliLoss, GilbertLoss, Loss, NoLoss

NS_PER_S = 1_000_000_000
CHANNELS: list[tuple[Loss, float]] = [
    (NoLoss(), 0.0),
    *((BernoulliLoss(rate=rate), rate) for rate in (0.02, 0.1, 0.3)),
    *((GilbertLoss(rate=rate, burst=2.0), rate) for rate in (0.02, 0.1, 0.3)),
    *((GilbertLoss(rate=rate, burst=4.0), rate) for rate in (0.02, 0.1, 0.3)),
]


class OneWay:
    """Messages from "a" to "b" over a channel; what `a` counts reaches `b` unless `keeps_count` says no."""

    def __init__(self, loss: Loss, seed: int = 0) -> None:
        self.ports = {name: RecordingPort(name) for name in ("a", "b")}
        self.parts = {
            name: LinkLoss(port, ["b" if name == "a" else "a"], self.report, incarnation=1)
            for name, port in self.ports.items()
        }
        self.reports: list[float] = []
        self.keeps_count: Callable[[], bool] = lambda: True
        self.set_loss(loss, seed)
        for part in self.parts.values():
            part.start()

    def report(self, peer: str, rate: float) -> None:
        assert peer == "a"
        self.reports.append(rate)

    def set_loss(self, loss: Loss, seed: int = 0) -> None:
        self._is_lost = loss_sampler(loss, Random(seed)) or (lambda: False)

    @property
    def rate(self) -> float:
        return self.parts["b"].rates["a"]

    def send(self, count: int) -> None:
        for _ in range(count):
            self.parts["a"].sent("b")
            if not self._is_lost():
                self.parts["b"].received("a")

    def second(self) -> None:
        """The timers of one second: the count goes out."""
        for name, port in self.ports.items():
            port.now += NS_PER_S
            assert port.timers == {("link-loss", "count"): port.now}
            self.parts[name].on_timer(("link-loss", "count"))
        sent, self.ports["a"].sent = self.ports["a"].sent, []
        assert not self.ports["b"].sent  # it has put nothing on the link
        for to, message in sent:
            assert to == "b"
            if self.keeps_count():
                self.parts["b"].on_link_count("a", message)

    def run(self, messages: int, per_second: int = 50) -> None:
        for _ in range(messages // per_second):
            self.send(per_second)
            self.second()


@pytest.mark.parametrize(("loss", "rate"), CHANNELS)
@pytest.mark.parametrize("per_second", [16, 250, 2_500])
def test_the_estimate_is_near_the_rate_after_5000_messages(loss: Loss, rate: float, per_second: int) -> None:
    link = OneWay(loss, seed=3)
    link.run(5_000, per_second)
    assert link.rate == pytest.approx(rate, abs=0.01 + 0.25 * rate)


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "rate"), CHANNELS)
@pytest.mark.parametrize("per_second", [16, 1_600, 5_000])
def test_a_constant_rate_is_reported_about_once(loss: Loss, rate: float, per_second: int) -> None:
    reports = []
    for seed in range(3):
        link = OneWay(loss, seed)
        link.run(50_000, per_second)
        reports += link.reports
    assert len(reports) == 0 if not rate else 3 <= len(reports) <= 8


def test_the_report_of_a_constant_rate_without_regard_to_noise_would_not_be_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the noise terms are for: the test above would catch their absence."""
    monkeypatch.setattr(link_loss, "NOISE_DEVIATIONS", 0.0)
    monkeypatch.setattr(link_loss, "LASTING_MESSAGES", 0)
    monkeypatch.setattr(link_loss, "LASTING_COUNTS", 0)
    link = OneWay(GilbertLoss(rate=0.02, burst=2.0))
    link.run(50_000, 16)
    assert len(link.reports) > 20


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.05), (0.02, 0.1), (0.1, 0.2), (0.1, 0.0), (0.3, 0.05)])
def test_a_change_is_reported_in_a_few_thousand_messages(before: float, after: float) -> None:
    link = OneWay(BernoulliLoss(rate=before), seed=1)
    link.run(10_000)
    link.reports.clear()
    link.set_loss(BernoulliLoss(rate=after), seed=2)
    link.run(10_000)
    assert 1 <= len(link.reports) <= 3
    assert link.reports[-1] == pytest.approx(after, abs=0.01 + 0.2 * after)


def test_lost_counts_do_not_distort() -> None:
    random = Random(5)
    link = OneWay(BernoulliLoss(rate=0.1), seed=1)
    link.keeps_count = lambda: random.random() < 0.5
    link.run(20_000)
    assert link.rate == pytest.approx(0.1, abs=0.03)


def test_messages_that_come_after_their_count_are_not_lost() -> None:
    """Half of every second's messages are still on their way when it is counted."""
    link = OneWay(NoLoss())
    for _ in range(100):
        link.parts["a"].sent("b", 40)
        link.parts["b"].received("a", 20)
        link.second()
        link.parts["b"].received("a", 20)
    assert link.rate < 0.03
    assert len(link.reports) <= 2


def test_repeated_messages_are_no_negative_loss() -> None:
    link = OneWay(NoLoss())
    for _ in range(100):
        link.parts["a"].sent("b", 40)
        link.parts["b"].received("a", 44)
        link.second()
    assert link.rate == 0.0
    link.run(10_000)
    link.set_loss(BernoulliLoss(rate=0.1))
    link.run(10_000)  # the surplus of long ago hides nothing
    assert link.rate == pytest.approx(0.1, abs=0.03)


def test_nothing_is_counted_where_nothing_is_sent() -> None:
    link = OneWay(NoLoss())
    link.send(3)
    link.second()
    for _ in range(5):
        link.parts["a"].on_timer(("link-loss", "count"))
    assert link.ports["a"].sent == []


def test_unknown_until_there_are_enough_messages() -> None:
    link = OneWay(BernoulliLoss(rate=0.5))
    link.run(400)
    assert link.rate == 0.0
    assert link.reports == []
    link.run(1_000)
    assert link.rate > 0.4


def test_a_new_incarnation_begins_anew() -> None:
    link = OneWay(NoLoss())
    link.run(2_000)
    link.parts["a"] = LinkLoss(link.ports["a"], ["b"], link.report, incarnation=2)
    link.parts["a"].start()
    link.run(2_000)
    assert link.rate == 0.0
    # The receiver has counted nothing yet.
    link.parts["b"] = LinkLoss(link.ports["b"], ["a"], link.report, incarnation=9)
    link.parts["b"].start()
    link.run(2_000)
    assert link.rate == 0.0


def test_forged_repeated_and_overtaken_counts_are_ignored() -> None:
    link = OneWay(BernoulliLoss(rate=0.1), seed=4)
    link.run(5_000)
    part, rate = link.parts["b"], link.rate
    for total in (0, 4_000, 5_000, 2**62):
        part.on_link_count("a", LinkCount(1, total))
    part.on_link_count("stranger", LinkCount(1, 10))
    assert link.rate == rate
    assert set(part.rates) == {"a"}
    part.on_link_count(
        "a", LinkCount(2**62, 2**62)
    )  # a forged life: the true one is heard again all the same
    link.set_loss(NoLoss())
    link.run(10_000)
    assert link.rate < 0.01


def test_disabled_it_counts_nothing_and_says_nothing() -> None:
    port = RecordingPort("b")
    reports: list[float] = []
    part = LinkLoss(port, ["a"], lambda peer, rate: reports.append(rate), incarnation=1, enabled=False)
    part.start()
    part.sent("a")
    for total in range(0, 10_000, 1_000):
        part.on_link_count("a", LinkCount(1, total))
    assert not port.timers
    assert not port.sent
    assert not reports
    assert part.rates == {"a": 0.0}


@pytest.mark.parametrize(
    ("reported", "spread", "move"),
    [(0.0, 0.0, 0.005), (0.1, 0.001, 0.02), (0.1, 0.02, 0.05), (0.3, 0.01, 0.06)],
)
def test_least_move(reported: float, spread: float, move: float) -> None:
    assert least_move(reported, spread) == pytest.approx(move)


def test_an_estimate_stays_between_0_and_1() -> None:
    estimate = LossEstimate()
    assert estimate.rate == 0.0
    estimate.add(1_000, 0)
    assert estimate.rate == 1.0
    estimate.add(1_000, 90_000)
    assert estimate.rate == 0.0
