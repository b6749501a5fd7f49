"""Defines which topics are ordered, their precedence, and which server numbers them. A layout never changes.

An entry is a topic or a topic pattern. An event belongs to the first entry that selects its topic, and all events of an
entry share one counter. Entries are listed by precedence; ranks count from 0, the highest. A server hosts a contiguous
range of entries. It may have a standby on another node, and then needs a witness on a third.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from hashlib import blake2b

import msgspec
from msgspec import Struct, structs

from tidings.core.errors import OrderError, TopicError
from tidings.core.events.topics import TopicPattern
from tidings.core.ordering.messages import MAX_TOPICS
from tidings.core.ordering.stamps import Chain

MAX_SERVERS = 256
EVERYTHING = "/**"
SHOWN = 5
"""How many topics a description of a difference lists."""


class ServerPlacement(Struct, frozen=True, forbid_unknown_fields=True):
    """One server: its name, its entries, and the nodes of its replicas."""

    name: str
    topics: tuple[str, ...]
    node: str = ""
    """Empty if the node has the server's name."""
    standby: str = ""
    witness: str = ""

    @property
    def primary(self) -> str:
        return self.node or self.name


class _Text(Struct, frozen=True, forbid_unknown_fields=True):
    servers: tuple[ServerPlacement, ...]
    causal: bool


class Layout:
    """The entries of all servers. `causal` means groups of threshold 1 and serial publishers: causal and total order.
    Without it the order is total only."""

    def __init__(self, servers: Iterable[ServerPlacement], *, causal: bool = True) -> None:
        # Naming the default node explicitly must not change the fingerprint.
        self.servers = tuple(
            structs.replace(place, node="") if place.node == place.name else place for place in servers
        )
        self.causal = causal
        self.topics = tuple(topic for server in self.servers for topic in server.topics)
        self._check()
        self._patterns = tuple(TopicPattern(topic) for topic in self.topics)
        self._exact = {topic.text: rank for rank, topic in enumerate(self._patterns) if topic.exact}
        self._wild = tuple((rank, topic) for rank, topic in enumerate(self._patterns) if not topic.exact)
        starts, start = [], 0
        for server in self.servers:
            starts.append(start)
            start += len(server.topics)
        self.chain = Chain([server.name for server in self.servers], starts, start)
        self._places = {server.name: server for server in self.servers}
        self.text = msgspec.json.encode(_Text(self.servers, causal)).decode()
        self.fingerprint = int.from_bytes(
            blake2b(self.text.encode("utf-8", "surrogatepass"), digest_size=6).digest()
        )
        self.rank_of = lru_cache(maxsize=65_536)(self._rank_of)

    @property
    def threshold(self) -> int:
        return 1 if self.causal else 2

    def _check(self) -> None:
        if not 0 < len(self.servers) <= MAX_SERVERS:
            raise OrderError(f"{len(self.servers)} sequencer servers; expected 1 to {MAX_SERVERS}")
        seen: dict[str, str] = {}
        names: set[str] = set()
        for server in self.servers:
            if not server.name or server.name in names:
                raise OrderError(f"two sequencer servers are named {server.name!r}, or one has no name")
            names.add(server.name)
            if not server.topics:
                raise OrderError(f"sequencer server {server.name!r} has no topics")
            self._check_replicas(server)
            for topic in server.topics:
                if topic in seen:
                    raise OrderError(
                        f"topic {topic!r} is listed twice: at {seen[topic]!r} and at {server.name!r}"
                    )
                seen[topic] = server.name
                try:
                    TopicPattern(topic)
                except TopicError as error:
                    raise OrderError(f"sequencer server {server.name!r}: {error}") from None
        if len(seen) > MAX_TOPICS:
            raise OrderError(f"{len(seen)} topics with an order; at most {MAX_TOPICS} are supported")

    @staticmethod
    def _check_replicas(server: ServerPlacement) -> None:
        if bool(server.standby) != bool(server.witness):
            raise OrderError(f"sequencer server {server.name!r}: standby and witness must be given together")
        nodes = [node for node in (server.primary, server.standby, server.witness) if node]
        if len(set(nodes)) < len(nodes):
            raise OrderError(
                f"sequencer server {server.name!r}: primary, standby and witness must be three different nodes"
            )

    # --- Topics

    def _rank_of(self, topic: str) -> int | None:
        """Return the rank of the entry that a topic belongs to, or None if the topic has no order."""
        rank = self._exact.get(topic)
        for wild_rank, pattern in self._wild:
            if rank is not None and rank < wild_rank:
                break
            if pattern.matches(topic):
                return wild_rank
        return rank

    def ranks_for(self, topics: Iterable[TopicPattern]) -> tuple[int, ...]:
        """Return the ranks of the entries that may have events of these topics, ascending."""
        wanted = tuple(topics)
        if all(pattern.exact for pattern in wanted):
            found = {self.rank_of(pattern.text) for pattern in wanted}
            return tuple(sorted(rank for rank in found if rank is not None))
        return tuple(
            rank
            for rank, entry in enumerate(self._patterns)
            if any(overlap(entry, pattern) for pattern in wanted)
        )

    def uncovered(self, topics: Iterable[TopicPattern]) -> tuple[str, ...]:
        """Return the topics that no entry covers: their events may have no order."""
        return tuple(
            pattern.text for pattern in topics if not any(entry.covers(pattern) for entry in self._patterns)
        )

    def entry(self, rank: int) -> str:
        return self._patterns[rank].text

    def no_op_topic(self, rank: int) -> str:
        """Return a topic that the entry selects, for no-ops."""
        pattern = self._patterns[rank]
        levels = [level if level != "*" else "-" for level in pattern.levels]
        return "/" + "/".join(levels or ["-"])

    # --- Nodes

    def place(self, server: str) -> ServerPlacement:
        return self._places[server]

    def replicas(self, server: str) -> tuple[str, ...]:
        """Return the nodes that may be active for the server, the primary first."""
        place = self._places[server]
        return (place.primary, place.standby) if place.standby else (place.primary,)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """All sequencer nodes, in the order in which the layout first names them."""
        found: dict[str, None] = {}
        for place in self.servers:
            found.update(
                dict.fromkeys(node for node in (place.primary, place.standby, place.witness) if node)
            )
        return tuple(found)

    # --- Agreement

    def difference(self, other: Layout) -> str:
        """Describe how the other node's layout differs; empty if it does not."""
        if self.text == other.text:
            return ""
        mine, theirs = set(self.topics), set(other.topics)
        found = []
        if mine - theirs:
            found.append(f"only here: {_some(topic for topic in self.topics if topic not in theirs)}")
        if theirs - mine:
            found.append(f"only there: {_some(topic for topic in other.topics if topic not in mine)}")
        if not found:
            found += [
                f"rank {rank} is {ours} here and {topic} there"
                for rank, (ours, topic) in enumerate(zip(self.topics, other.topics, strict=True))
                if ours != topic
            ][:1]
        if self.causal != other.causal:
            found.append(f"order is {_order(self.causal)} here and {_order(other.causal)} there")
        if not found:
            found.append("the same topics are on different servers, or replicas on different nodes")
        return "; ".join(found)


def _order(causal: bool) -> str:
    return "causal" if causal else "total"


def _some(topics: Iterable[str]) -> str:
    listed = list(topics)
    rest = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + rest


def overlap(left: TopicPattern, right: TopicPattern) -> bool:
    """Return whether both patterns select a common topic."""
    if not left.subtree and not right.subtree and len(left.levels) != len(right.levels):
        return False
    if left.subtree and not right.subtree and len(right.levels) < len(left.levels):
        return False
    if right.subtree and not left.subtree and len(left.levels) < len(right.levels):
        return False
    return all(
        one == other or "*" in (one, other) for one, other in zip(left.levels, right.levels, strict=False)
    )


def parse_layout(text: str) -> Layout:
    """Decode a layout that another node sent; raises OrderError if it is invalid."""
    try:
        decoded = msgspec.json.decode(text, type=_Text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise OrderError(f"not a valid layout: {error}") from None
    return Layout(decoded.servers, causal=decoded.causal)


def single(name: str, topics: Iterable[str] = (EVERYTHING,), *, causal: bool = True) -> Layout:
    """Return a layout with one server for all topics."""
    return Layout([ServerPlacement(name, tuple(topics))], causal=causal)


def spread(servers: Mapping[str, Iterable[str]], nodes: Iterable[str], *, causal: bool) -> Layout:
    """Place each server on the node of its name; with three nodes or more, the next two are standby and witness."""
    names = list(nodes)
    places = []
    for name, topics in servers.items():
        after = names.index(name)
        others = [names[(after + step) % len(names)] for step in (1, 2)] if len(names) > 2 else ["", ""]
        places.append(ServerPlacement(name, tuple(topics), standby=others[0], witness=others[1]))
    return Layout(places, causal=causal)
