"""Topics and patterns for property tests, of the characters that brokers reserve, and of any other."""

from __future__ import annotations

from hypothesis import strategies as st

from tidings.core.errors import TopicError
from tidings.core.events.topics import TopicPattern, check_topic


def _is_topic(text: str) -> bool:
    try:
        return check_topic(text) == text
    except TopicError:
        return False


def _is_pattern(text: str) -> bool:
    try:
        return TopicPattern(text).text == text
    except TopicError:
        return False


_LEVEL = st.one_of(
    st.text(alphabet=".>+# %2E$ab", min_size=1, max_size=4),
    st.sampled_from(["a", "b", "%2E", "%", "a.b", "$SYS"]),
    st.text(min_size=1, max_size=6),
)
TOPICS = st.lists(_LEVEL, min_size=1, max_size=5).map(lambda levels: "/" + "/".join(levels)).filter(_is_topic)
PATTERNS = (
    st.tuples(st.lists(st.one_of(_LEVEL, st.just("*")), max_size=4), st.booleans())
    .map(lambda drawn: "/" + "/".join([*drawn[0], *(["**"] if drawn[1] else [])]))
    .filter(_is_pattern)
)
