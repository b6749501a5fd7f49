"""Finds the topic patterns that select a topic without trying each: a trie of levels, and a dict of exact patterns."""

from __future__ import annotations

from tidings.core.events.topics import TopicPattern


class _Node:
    __slots__ = ("children", "ends", "subtree")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.ends: TopicPattern | None = None
        self.subtree: TopicPattern | None = None

    @property
    def empty(self) -> bool:
        return not self.children and self.ends is None and self.subtree is None


class TopicTrie:
    """A set of topic patterns with `matching(topic)`; adding twice or removing an absent pattern has no effect."""

    __slots__ = ("_exact", "_root", "_size")

    def __init__(self) -> None:
        self._exact: dict[str, TopicPattern] = {}
        self._root = _Node()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, pattern: TopicPattern) -> None:
        if pattern.exact:
            self._size += pattern.text not in self._exact
            self._exact[pattern.text] = pattern
            return
        node = self._root
        for level in pattern.levels:
            node = node.children.setdefault(level, _Node())
        if pattern.subtree:
            self._size += node.subtree is None
            node.subtree = pattern
        else:
            self._size += node.ends is None
            node.ends = pattern

    def remove(self, pattern: TopicPattern) -> None:
        if pattern.exact:
            self._size -= self._exact.pop(pattern.text, None) is not None
            return
        path = [self._root]
        for level in pattern.levels:
            child = path[-1].children.get(level)
            if child is None:
                return
            path.append(child)
        if pattern.subtree:
            self._size -= path[-1].subtree is not None
            path[-1].subtree = None
        else:
            self._size -= path[-1].ends is not None
            path[-1].ends = None
        self._prune(path, pattern)

    @staticmethod
    def _prune(path: list[_Node], pattern: TopicPattern) -> None:
        for depth in range(len(path) - 1, 0, -1):
            if not path[depth].empty:
                break
            del path[depth - 1].children[pattern.levels[depth - 1]]

    def matching(self, topic: str) -> list[TopicPattern]:
        """Return every pattern that selects `topic`, sorted by text.

        A level reaches at most one node per pattern, so a hostile topic costs no more than trying all patterns.
        """
        found = []
        exact = self._exact.get(topic)
        if exact is not None:
            found.append(exact)
        reached = [self._root]
        for level in topic[1:].split("/"):
            found += [node.subtree for node in reached if node.subtree is not None]
            reached = [
                child
                for node in reached
                for child in (node.children.get(level), node.children.get("*"))
                if child is not None
            ]
            if not reached:
                break
        for node in reached:
            found += [pattern for pattern in (node.subtree, node.ends) if pattern is not None]
        return sorted(found, key=_text)


def _text(pattern: TopicPattern) -> str:
    return pattern.text
