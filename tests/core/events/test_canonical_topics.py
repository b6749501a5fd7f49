"""The smallest equivalent set of topic patterns, against the definition: no pattern that another one covers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidings.core.events.topics import EVERYTHING, NAME_TOPIC, TopicPattern, canonical_topics

LEVELS = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)
PATTERNS = st.builds(lambda levels, end: "/" + "/".join(levels) + end, LEVELS, st.sampled_from(["", "/**"]))


@given(st.lists(PATTERNS, max_size=9))
def test_only_what_no_other_covers_is_kept(texts: list[str]) -> None:
    patterns = {TopicPattern(text) for text in texts} or {EVERYTHING}
    kept = {one for one in patterns if not any(other != one and other.covers(one) for other in patterns)}
    assert canonical_topics(texts) == tuple(sorted(kept, key=lambda pattern: pattern.text))


@given(st.lists(PATTERNS, max_size=9))
def test_a_name_stays_whatever_covers_it(texts: list[str]) -> None:
    name = NAME_TOPIC + "billing"
    assert {each.text for each in canonical_topics([*texts, "/**", name])} == {"/**", name}
    assert TopicPattern(name) in canonical_topics([*texts, name])
