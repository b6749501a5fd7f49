"""How a user's mistake is told through Spark."""

from __future__ import annotations


def told_in_one_line(error: BaseException, words: str) -> None:
    """What a user sees: a line of Spark's at most, and then ours."""
    first_two = str(error).splitlines()[:2]
    assert any(words in line for line in first_two), first_two
    assert "Traceback" not in str(error)
