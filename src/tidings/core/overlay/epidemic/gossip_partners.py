"""Chooses gossip partners: brokers of the directory that want an event, by weight (polarized, section III)."""

from __future__ import annotations

from collections.abc import Sequence

from tidings.core.kernel import Port
from tidings.core.overlay.epidemic.directory import Directory, DirectoryListener
from tidings.core.overlay.epidemic.messages import BrokerEntry, PatternNumbers
from tidings.core.overlay.epidemic.partners import (
    PartnerSelection,
    is_deep,
    loss_weight,
    may_push,
    topology_weight,
)
from tidings.core.overlay.epidemic.settings import RecoverySettings, Strategy
from tidings.core.overlay.labels import Label

MAX_REMEMBERED = 4_096
LOWEST_WEIGHT = 0.05
"""For pulls, which use inverse weights: the root weighs 0, and otherwise every broker would always ask it first."""

Candidates = tuple[Sequence[str], Sequence[float]]


def push_strategy(settings: RecoverySettings) -> Strategy:
    """Return the strategy for pushes; 3PG always goes by weight."""
    by_weight = settings.algorithm == "push+pull" and settings.selection == "random"
    return "wrpg" if by_weight else settings.selection


def pull_strategy(settings: RecoverySettings) -> Strategy:
    """Return the strategy for pulls. 3PG pulls from the lowest weights.

    A broker that solicits draws by weight, because it asks again if it got nothing.
    """
    if settings.algorithm != "push+pull":
        return settings.selection
    return "wrpg" if settings.solicits else "wdpg"


class GossipPartners(DirectoryListener):
    """Chooses partners, and caches candidates and weights until the directory changes."""

    def __init__(self, port: Port, directory: Directory, settings: RecoverySettings) -> None:
        self._port = port
        self._directory = directory
        directory.listeners.append(self)
        self._settings = settings
        self._push_selection = PartnerSelection(push_strategy(settings), settings.window)
        self._pull_selection = PartnerSelection(pull_strategy(settings), settings.window)
        self._candidates: dict[tuple[tuple[bytes, ...], bool], Candidates] = {}
        self._may_push: bool | None = None
        self._deep: bool | None = None

    def entry_changed(self, entry: BrokerEntry) -> None:
        """Drop what was computed from the old directory."""
        self._candidates.clear()
        self._may_push = self._deep = None

    def known(self, broker: str) -> bool:
        return broker in self._directory.others

    def wants(self, broker: str, numbers: PatternNumbers) -> bool:
        entry = self._directory.others.get(broker)
        if entry is None:
            return False
        return entry.everything or any(pattern in entry.patterns for pattern, _, _ in numbers)

    def may_push(self) -> bool:
        """Return True if we are in the share of brokers that push in 3PG, top of the tree first."""
        if self._may_push is None:
            mine = self._directory.label
            self._may_push = mine is not None and may_push(mine, self._labels(), self._settings.window)
        return self._may_push

    def choose(
        self,
        patterns: tuple[bytes, ...],
        count: int,
        *,
        pulling: bool = False,
        without: Sequence[str] = (),
        also: str = "",
        by_tree: bool = True,
    ) -> list[str]:
        """Choose `count` brokers whose clients subscribe to one of the patterns; `also` is one more candidate."""
        names, weights = self._weighed(patterns, by_tree)
        if pulling:
            weights = [max(weight, LOWEST_WEIGHT) for weight in weights]
        if also and also != self._port.node and also not in names and self.known(also):
            names, weights = [*names, also], [*weights, max(self._weight(also, by_tree), LOWEST_WEIGHT)]
        if any(name in names for name in without):
            kept = [i for i, name in enumerate(names) if name not in without]
            names, weights = [names[i] for i in kept], [weights[i] for i in kept]
        selection = self._pull_selection if pulling else self._push_selection
        lowest = pulling and self._settings.algorithm == "push+pull"
        return selection.choose(names, weights, count, self._port.random, lowest=lowest, deep=self._is_deep())

    # --- Weights

    def _weighed(self, patterns: tuple[bytes, ...], by_tree: bool) -> Candidates:
        key = patterns, by_tree
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) >= MAX_REMEMBERED:
                self._candidates.clear()
            names = self._directory.subscribers(patterns)
            found = self._candidates[key] = names, [self._weight(name, by_tree) for name in names]
        return found

    def _weight(self, broker: str, by_tree: bool) -> float:
        mine, theirs = self._directory.label, self._directory.others[broker].label
        if mine is None or not theirs:
            return 1.0  # one of us has no label yet: no preference
        if self._settings.weights == "topology":
            return topology_weight(mine, theirs)
        return loss_weight(mine, theirs, self._directory.rates(), by_tree=by_tree)

    def _labels(self) -> Sequence[Label]:
        return self._directory.labelled()

    def _is_deep(self) -> bool:
        """Return True if we are in the deepest share of the brokers, for PGW."""
        if self._deep is None:
            mine = self._directory.label
            self._deep = mine is not None and is_deep(mine, self._labels(), self._settings.window)
        return self._deep
