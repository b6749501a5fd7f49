"""What can be configured about recovery, and the bounds that keep it harmless.

`algorithm = "auto"` is for people: 3PG with a soliciting pull, partners by weight, an interval that adapts, and two
redundant blocks for large events. Everything else is for experiments and follows the papers to the letter.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Algorithm = Literal["none", "push", "subscriber-pull", "publisher-pull", "combined", "push+pull", "auto"]
Strategy = Literal["random", "wdpg", "wrpg", "pgw"]
Weights = Literal["topology", "loss"]
CachePolicy = Literal["fifo", "foreign-first", "random"]

AUTO_REDUNDANCY = 2
SHORTEST_RETRY_NS = 100_000_000
LISTED_NS = 1_000_000_000
"""An event is advertised in so many rounds that they last this long: else pull stalls (recovery, polarized 8)."""


class RecoverySettings(Struct, frozen=True, kw_only=True):
    """How brokers of mode "epidemic" repair what is lost. `[recovery]` in docs/scenarios.md explains the keys."""

    algorithm: Algorithm = "auto"
    selection: Strategy = "random"
    weights: Weights = "topology"
    fanout: int = 3
    interval_ns: int = 1_000_000_000
    window: float = 0.25
    """The share of brokers that push in 3PG, top of the tree first; the deepest share in PGW."""
    pull: Literal["advertise", "solicit"] = "solicit"
    push: Literal["event", "digest"] = "event"
    """The event itself when it comes (polarized), or a digest of the cache every round (epidemic, 4.1)."""
    routing: Literal["direct", "tree"] = "direct"
    """Digests go to brokers that are chosen, or along the tree towards subscribers (epidemic, section 4)."""
    rounds: int = 0
    """In how many rounds an event is advertised; 0: as many as make a second."""
    redundancy: int = 0
    block_bytes: int = 1_200
    datagram_bytes: int = 0
    """Blocks are smaller where their header would make a datagram larger than this; 0: they are not."""
    buffer_events: int = 1_500
    cache_policy: CachePolicy = "fifo"
    forward_probability: float = 0.5
    literal: bool = False
    """Digests that are pushed go on with that probability everywhere, as the paper's figure 2 says."""
    adaptive: bool = False
    """Rounds come up to eight times as often while there is something to recover (epidemic, section 5)."""

    # Bounds; what happens at each is said where it is kept.
    buffer_bytes: int = 64 * 1024 * 1024
    assembly_bytes: int = 64 * 1024 * 1024
    assembly_bytes_per_sender: int = 16 * 1024 * 1024
    max_lost: int = 16_384
    max_streams: int = 65_536
    max_attempts: int = 200
    max_age_ns: int = 120_000_000_000
    gossip_bytes_per_s: int = 8 * 1024 * 1024
    answers_per_round: int = 256

    @property
    def grace_ns(self) -> int:
        """How long a gap may be mere reordering."""
        return min(max(self.interval_ns // 10, 20_000_000), 200_000_000)

    @property
    def retry_ns(self) -> int:
        """How long an answer is waited for while it is not known how long they take."""
        return max(self.interval_ns // 4, SHORTEST_RETRY_NS)

    @property
    def listed_rounds(self) -> int:
        """In how many rounds an event is advertised."""
        return self.rounds or max(1, -(-LISTED_NS // self.interval_ns))

    @property
    def pushes_events(self) -> bool:
        """Sends an event on as soon as it comes."""
        return self.algorithm == "push+pull" or (self.algorithm == "push" and self.push == "event")

    @property
    def pushes_digests(self) -> bool:
        """Sends a digest of the cache every round."""
        return self.algorithm == "push" and self.push == "digest"

    @property
    def advertises(self) -> bool:
        """Announces what is in the cache."""
        return self.algorithm in ("push+pull", "subscriber-pull") and self.pull == "advertise"

    @property
    def solicits(self) -> bool:
        """Asks for what is missing, and so must notice what is."""
        if self.algorithm in ("publisher-pull", "combined"):
            return True
        return self.algorithm in ("push+pull", "subscriber-pull") and self.pull == "solicit"

    @property
    def records_routes(self) -> bool:
        """Events carry their route, so that the publisher's broker can be asked along it."""
        return self.algorithm in ("publisher-pull", "combined")

    def resolved(self) -> RecoverySettings:
        """With what "auto" stands for in its place."""
        if self.algorithm != "auto":
            return self
        return replace(
            self,
            algorithm="push+pull",
            pull="solicit",
            routing="direct",
            adaptive=True,
            redundancy=max(self.redundancy, AUTO_REDUNDANCY),
        )
