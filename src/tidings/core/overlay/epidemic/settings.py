"""The settings of recovery, and the bounds that keep it harmless.

`algorithm = "auto"` is for users: 3PG with a soliciting pull, partners by weight, an adaptive interval, and two
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
"""How long an event is advertised, over as many rounds as that takes. If it is shorter, pull stalls."""


class RecoverySettings(Struct, frozen=True, kw_only=True):
    """How brokers in mode "epidemic" repair losses. `[recovery]` in docs/scenarios.md explains the keys."""

    algorithm: Algorithm = "auto"
    selection: Strategy = "random"
    weights: Weights = "topology"
    fanout: int = 3
    interval_ns: int = 1_000_000_000
    window: float = 0.25
    """The share of brokers that push in 3PG, top of the tree first; in PGW, the deepest share."""
    pull: Literal["advertise", "solicit"] = "solicit"
    push: Literal["event", "digest"] = "event"
    """Push the event itself on arrival (polarized), or a digest of the cache every round (epidemic, section 4.1)."""
    routing: Literal["direct", "tree"] = "direct"
    """Send digests straight to chosen brokers, or along the tree towards subscribers (epidemic, section 4)."""
    rounds: int = 0
    """In how many rounds an event is advertised; 0: as many as take a second."""
    redundancy: int = 0
    block_bytes: int = 1_200
    datagram_bytes: int = 0
    """The limit for a datagram: a block shrinks if it would exceed it with its header; 0: no limit."""
    buffer_events: int = 1_500
    cache_policy: CachePolicy = "fifo"
    forward_probability: float = 0.5
    literal: bool = False
    """Forward pushed digests with that probability everywhere, as in the paper's figure 2."""
    adaptive: bool = False
    """Run rounds up to eight times as often while there is something to recover (epidemic, section 5)."""

    # Bounds; the code that enforces each one explains what happens there.
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
        """How long a gap may be due to reordering alone."""
        return min(max(self.interval_ns // 10, 20_000_000), 200_000_000)

    @property
    def retry_ns(self) -> int:
        """How long to wait for an answer until we know how long answers take."""
        return max(self.interval_ns // 4, SHORTEST_RETRY_NS)

    @property
    def listed_rounds(self) -> int:
        """In how many rounds an event is advertised."""
        return self.rounds or max(1, -(-LISTED_NS // self.interval_ns))

    @property
    def pushes_events(self) -> bool:
        """Whether events are pushed as soon as they come."""
        return self.algorithm == "push+pull" or (self.algorithm == "push" and self.push == "event")

    @property
    def pushes_digests(self) -> bool:
        """Whether a digest of the cache is pushed every round."""
        return self.algorithm == "push" and self.push == "digest"

    @property
    def advertises(self) -> bool:
        """Whether the contents of the cache are advertised."""
        return self.algorithm in ("push+pull", "subscriber-pull") and self.pull == "advertise"

    @property
    def solicits(self) -> bool:
        """Whether we ask for what is missing, and so must detect losses."""
        if self.algorithm in ("publisher-pull", "combined"):
            return True
        return self.algorithm in ("push+pull", "subscriber-pull") and self.pull == "solicit"

    @property
    def records_routes(self) -> bool:
        """Whether events record their route, so that requests can follow it back to the publisher's broker."""
        return self.algorithm in ("publisher-pull", "combined")

    def resolved(self) -> RecoverySettings:
        """Replace "auto" with the settings it stands for."""
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
