"""Estimates the share of events and blocks lost on the link from each neighbour.

Polarized gossip weighs partners by the loss rates of the tree's links. Every broker measures them and reports changes
to the others (polarized, section III.B, which leaves open how). Here the sender reports now and then how many messages
it has put on the link, and the receiver compares that with how many came. Reports are totals, not differences, so that
the next one makes up for a lost one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import exp, sqrt

from tidings.core.kernel import Part, Port, TimerName
from tidings.core.overlay.epidemic.messages import LinkCount

NS_PER_S = 1_000_000_000
MAX_MESSAGES_PER_S = 10_000_000
"""A neighbour that claims to send more is not believed."""

MEMORY_MESSAGES = 1_000
"""A measurement this many messages ago weighs 1/e of one made now."""
MIN_MESSAGES = 500
"""The weight from which there is an estimate."""

MIN_MOVE = 0.005
MIN_RELATIVE_MOVE = 0.2
NOISE_DEVIATIONS = 2.5
LASTING_MESSAGES = 3 * MEMORY_MESSAGES
LASTING_COUNTS = 3
"""Every report goes to all brokers, so chance must not trigger one. Bursts make estimates vary by several times
MIN_MOVE, so a move counts only if it exceeds the noise and lasts. With these numbers, a Gilbert channel of constant
rate and bursts of 4 is reported one to three times in 100,000 messages; with MIN_MOVE and MIN_RELATIVE_MOVE alone, up
to 240 times."""
DISPERSION_COUNTS = 16
"""About how many counts the variation of the samples is averaged over."""
MAX_SURPRISE = 25.0
"""Keeps a single sample, in which the rate changed, from hiding the change by making everything look like noise."""


def least_move(reported: float, spread: float) -> float:
    """Return how far an estimate with this standard deviation must move from the reported rate to be reported."""
    return max(MIN_MOVE, MIN_RELATIVE_MOVE * reported, NOISE_DEVIATIONS * spread)


class LossEstimate:
    """Estimates the share of lost messages as a ratio of two fading sums, so that recent messages weigh most.

    A message that arrives after the count that includes it is missing in one sample and surplus in the next. The sums
    take both as they are, so the surplus makes up for the loss, and fades like everything else.
    """

    __slots__ = ("_dispersion", "_lost", "_sent")

    def __init__(self) -> None:
        self._sent = 0.0
        self._lost = 0.0
        self._dispersion = 1.0
        """How much more the samples vary than with independent losses: about 2 * burst - 1."""

    def add(self, sent: int, received: int) -> None:
        lost = sent - received
        if self.known:
            surprise = (lost - self.rate * sent) ** 2 / (_variance(self.rate) * sent)
            self._dispersion += (min(surprise, MAX_SURPRISE) - self._dispersion) / DISPERSION_COUNTS
        fade = exp(-sent / MEMORY_MESSAGES)
        self._sent = self._sent * fade + sent
        self._lost = self._lost * fade + lost

    @property
    def known(self) -> bool:
        return self._sent >= MIN_MESSAGES

    @property
    def rate(self) -> float:
        return min(max(self._lost / self._sent, 0.0), 1.0) if self.known else 0.0

    @property
    def spread(self) -> float:
        """The standard deviation of the estimated rate."""
        return sqrt(max(self._dispersion, 1.0) * _variance(self.rate) / self._sent)


def _variance(rate: float) -> float:
    """Return the variance of one message's loss, never zero."""
    return max(rate * (1.0 - rate), 1e-3)


class _Incoming:
    """The link from one neighbour: its last count, how many messages had come by then, and the estimate."""

    __slots__ = (
        "at",
        "estimate",
        "incarnation",
        "moved_counts",
        "moved_messages",
        "received",
        "reported",
        "sent",
    )

    def __init__(self) -> None:
        self.incarnation = -1
        self.sent = self.received = self.at = 0
        self.estimate = LossEstimate()
        self.reported: float | None = None
        self.moved_messages = self.moved_counts = 0
        """Messages and counts since the estimate left the reported rate."""

    def count(self, message: LinkCount, received: int, now: int) -> int:
        """Take a count; return how many messages it adds to the estimate.

        Any other incarnation starts over, not only a greater one: a forged count must not silence the neighbour.
        """
        sent = 0
        if message.incarnation == self.incarnation:
            sent = message.sent - self.sent
            elapsed_ns = now - self.at + NS_PER_S
            if not 0 < sent <= MAX_MESSAGES_PER_S * elapsed_ns // NS_PER_S:
                return 0  # duplicate, overtaken or forged
            self.estimate.add(sent, received - self.received)
        self.incarnation = message.incarnation
        self.sent, self.received, self.at = message.sent, received, now
        return sent

    def has_moved(self, messages: int) -> bool:
        """Return True if the estimate is worth a report after a count of this many more messages."""
        estimate = self.estimate
        if self.reported is None:
            return estimate.rate > MIN_MOVE
        if abs(estimate.rate - self.reported) <= least_move(self.reported, estimate.spread):
            self.moved_messages = self.moved_counts = 0
            return False
        self.moved_messages += messages
        self.moved_counts += 1
        return self.moved_messages >= LASTING_MESSAGES and self.moved_counts >= LASTING_COUNTS

    def report(self) -> float:
        """Return the estimate, and remember it as reported."""
        self.reported = self.estimate.rate
        self.moved_messages = self.moved_counts = 0
        return self.reported


class LinkLoss(Part):
    """Counts what goes over each link, and exchanges the counts with the neighbours."""

    name = "link-loss"
    handles = {LinkCount: "on_link_count"}

    def __init__(
        self,
        port: Port,
        neighbours: Sequence[str],
        report: Callable[[str, float], None],
        *,
        incarnation: int,
        interval_ns: int = NS_PER_S,
        enabled: bool = True,
    ) -> None:
        """`report` is called when the estimate for a neighbour has moved lastingly."""
        super().__init__(port)
        self._report = report
        self._rates = dict.fromkeys(neighbours, 0.0)
        self.rates: Mapping[str, float] = self._rates
        """Loss rate by neighbour; 0 until known."""
        self._incarnation = incarnation
        self._interval_ns = interval_ns
        self._enabled = enabled
        self._sent: defaultdict[str, int] = defaultdict(int)
        self._received: defaultdict[str, int] = defaultdict(int)
        self._sent_reported = dict.fromkeys(neighbours, 0)
        self._incoming = {peer: _Incoming() for peer in neighbours}

    def sent(self, peer: str, count: int = 1) -> None:
        """Count events or blocks sent on the link to `peer`."""
        self._sent[peer] += count

    def received(self, peer: str, count: int = 1) -> None:
        """Count events or blocks received on the link from `peer`."""
        self._received[peer] += count

    def start(self) -> None:
        if self._enabled:
            self._set_timer()

    def on_timer(self, name: TimerName) -> None:
        for peer, reported in self._sent_reported.items():
            sent = self._sent[peer]
            if sent != reported:
                self._sent_reported[peer] = sent
                self.port.send(peer, LinkCount(self._incarnation, sent))
        self._set_timer()

    def on_link_count(self, sender: str, message: LinkCount) -> None:
        incoming = self._incoming.get(sender)
        if incoming is None or not self._enabled:
            return
        messages = incoming.count(message, self._received[sender], self.port.now)
        self._rates[sender] = incoming.estimate.rate
        if messages and incoming.has_moved(messages):
            self._report(sender, incoming.report())

    def _set_timer(self) -> None:
        self.port.set_timer((self.name, "count"), self.port.now + self._interval_ns)
