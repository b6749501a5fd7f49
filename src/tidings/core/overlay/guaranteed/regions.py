"""Sets of brokers in a tree whose full extent nobody knows, for reports of coverage.

'Everybody behind that dead broker' includes brokers that join there tomorrow. So a region is a set of labels of the
infinite tree, in which every broker has any number of children. It is given by finitely many rules
`label -> (own, rest)`: `own` says whether that broker is inside, `rest` whether everybody below it is, unless a
deeper rule says otherwise. Above the root everything is outside.

A rule that repeats what it inherits is omitted. What remains is unique: all but finitely many children of a broker
have no rule at or below them, so the set itself determines `rest` at every broker, and a rule exists exactly where
`own` or `rest` differs from the parent's `rest`. Equal sets therefore have equal rules, hashes and wire forms. Rules
are ordered by label, so a broker precedes everybody below it. Merging two regions is one pass over both, without
recursion, because a chain of brokers may be deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidings.core.overlay.labels import MAX_LABEL_ITEM, MAX_LABEL_ITEMS, ROOT, Label, label_text

MAX_REGION_RULES = 16_384
MAX_REGION_ITEMS = 262_144
"""The most numbers that all labels of a region on the wire may have together."""

RegionWire = tuple[tuple[Label, bool, bool], ...]
"""(label, own, rest) for every rule, by label."""

_Rules = dict[Label, tuple[bool, bool]]


class Region:
    """An immutable set of brokers, both existing ones and ones that may join.

    >>> Region.branch((0, 1), seen_from=(0,)) - Region.single((0, 1, 5))
    Region(0.1 and below; except 0.1.5)
    """

    __slots__ = ("_hash", "_rules", "_sizes")

    def __init__(self, rules: _Rules) -> None:
        """For internal use: `rules` must be canonical and ordered by label."""
        self._rules = rules
        self._sizes = tuple(sorted({len(label) for label in rules}, reverse=True))
        self._hash = hash(tuple(rules.items()))

    @staticmethod
    def nothing() -> Region:
        return _NOTHING

    @staticmethod
    def everything() -> Region:
        return _EVERYTHING

    @staticmethod
    def single(x: Label) -> Region:
        """Return the region of `x` alone."""
        return Region({_checked(x): (True, False)})

    @staticmethod
    def branch(x: Label, *, seen_from: Label) -> Region:
        """Return `x` and everybody behind it, seen from its neighbour: the side of `x` if that link is cut."""
        _checked(x), _checked(seen_from)
        if x[:-1] == seen_from:
            return Region({x: (True, True)})
        if seen_from[:-1] == x:
            return Region({ROOT: (True, True), seen_from: (False, False)})
        raise ValueError(f"{label_text(seen_from)} is not a neighbour of {label_text(x)}")

    @property
    def is_empty(self) -> bool:
        return not self._rules

    @property
    def is_everything(self) -> bool:
        return self._rules == _EVERYTHING._rules

    def complement(self) -> Region:
        return _EVERYTHING - self

    def __or__(self, other: Region) -> Region:
        if self.is_empty:
            return other
        return self if other.is_empty else self._merged(other, lambda left, right: left or right)

    def __sub__(self, other: Region) -> Region:
        if self.is_empty or other.is_empty:
            return self
        return self._merged(other, lambda left, right: left and not right)

    def __contains__(self, label: Label) -> bool:
        rule = self._rules.get(label)
        if rule is not None:
            return rule[0]
        depth = len(label)
        for size in self._sizes:  # the nearest rule above, looking only at depths that have rules
            if size < depth and (rule := self._rules.get(label[:size])) is not None:
                return rule[1]
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Region) and self._rules == other._rules

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __repr__(self) -> str:
        return f"Region({'; '.join(self.atoms()) or 'nothing'})"

    def atoms(self, limit: int = 16) -> list[str]:
        """Describe the region for an operator, in at most `limit` terms, then how many more there are.

        A term precedes its exceptions, which are inside it: `0.1 and below`, `except 0.1.2`.
        """
        texts = [_term(*rule) for _, rule in zip(range(limit), _with_inherited(self._rules), strict=False)]
        left_out = len(self._rules) - len(texts)
        return [*texts, f"and {left_out:,} more"] if left_out else texts

    def to_wire(self) -> RegionWire:
        _check_size(len(self._rules), sum(map(len, self._rules)))
        return tuple((label, own, rest) for label, (own, rest) in self._rules.items())

    @staticmethod
    def from_wire(wire: object) -> Region:
        """Return the region that `to_wire` wrote, with lists or tuples. Raise ValueError for anything else."""
        if not isinstance(wire, tuple | list):
            raise ValueError("a region is a list of rules")
        _check_size(len(wire), 0)
        rules: _Rules = {}
        items = 0
        before: Label = ()
        for rule in wire:
            label, own, rest = _rule_from_wire(rule)
            items += len(label)
            _check_size(len(wire), items)
            if label <= before:
                raise ValueError(
                    f"the rules of a region must be ordered: {label_text(label)} is out of order"
                )
            rules[label] = (own, rest)
            before = label
        for label, own, rest, inherited in _with_inherited(rules):
            if own == rest == inherited:
                raise ValueError(f"the rule of {label_text(label)} in a region changes nothing")
        return Region(rules)

    def _merged(self, other: Region, combine: Callable[[bool, bool], bool]) -> Region:
        """Combine both sets, broker by broker. `combine(False, False)` must be False."""
        left, right = self._rules, other._rules
        merged: _Rules = {}
        # The brokers with rules from the root down to here, each with both values of `rest` that apply below it.
        above: list[tuple[Label, bool, bool]] = [((), False, False)]
        for label in sorted(left | right):  # two ascending runs, which sorting merges in one pass
            while label[: len(above[-1][0])] != above[-1][0]:
                above.pop()
            _, left_above, right_above = above[-1]
            left_own, left_rest = left.get(label, (left_above, left_above))
            right_own, right_rest = right.get(label, (right_above, right_above))
            rule = combine(left_own, right_own), combine(left_rest, right_rest)
            inherited = combine(left_above, right_above)
            if rule != (inherited, inherited):
                merged[label] = rule
            above.append((label, left_rest, right_rest))
        return Region(merged)


def _with_inherited(rules: _Rules) -> Iterator[tuple[Label, bool, bool, bool]]:
    """Yield (label, own, rest, the `rest` that it overrides) for every rule."""
    above: list[tuple[Label, bool]] = [((), False)]
    for label, (own, rest) in rules.items():
        while label[: len(above[-1][0])] != above[-1][0]:
            above.pop()
        yield label, own, rest, above[-1][1]
        above.append((label, rest))


def _term(label: Label, own: bool, rest: bool, inherited: bool) -> str:
    """Describe what a rule adds to its surroundings, or removes from them."""
    text = label_text(label)
    if rest != inherited:
        text = f"{text} and below" if own != inherited else f"below {text}"
    return f"except {text}" if inherited else text


def _checked(label: Label) -> Label:
    if label[:1] != ROOT:
        raise ValueError(f"{label_text(label)!r} is not a label: it must begin with the root's 0")
    return label


def _check_size(rules: int, items: int) -> None:
    if rules > MAX_REGION_RULES or items > MAX_REGION_ITEMS:
        raise ValueError(f"a region has at most {MAX_REGION_RULES:,} rules with {MAX_REGION_ITEMS:,} numbers")


def _rule_from_wire(rule: object) -> tuple[Label, bool, bool]:
    if not isinstance(rule, tuple | list) or len(rule) != 3:
        raise ValueError("a rule of a region is [label, own, rest]")
    items, own, rest = rule
    if not isinstance(own, bool) or not isinstance(rest, bool):
        raise ValueError("own and rest of a region's rule are true or false")
    if not isinstance(items, tuple | list) or not 1 <= len(items) <= MAX_LABEL_ITEMS:
        raise ValueError(f"a label is a list of 1 to {MAX_LABEL_ITEMS} numbers")
    if not all(type(item) is int and 0 <= item <= MAX_LABEL_ITEM for item in items):
        raise ValueError(f"the numbers of a label are whole and 0 to {MAX_LABEL_ITEM}")
    return _checked(tuple(items)), own, rest


_NOTHING = Region({})
_EVERYTHING = Region({ROOT: (True, True)})
