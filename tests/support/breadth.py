"""How much of what is random runs: `make quick` and `make test` a part that is the same each time, `make campaign` all.

TIDINGS_TESTS chooses: quick, test (by itself) or campaign.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

SHARES = {"quick": 0.05, "test": 0.3, "campaign": 10.0}
SHARE = SHARES[os.environ.get("TIDINGS_TESTS", "test")]
LEAST = 5


def examples(count: int) -> int:
    """For `max_examples` of a property: the share of `count` that this run takes."""
    return max(LEAST, round(count * SHARE))


def few(values: Iterable[object], count: int) -> list[ParameterSet]:
    """For `parametrize`: the first `count` of the values always, the others in `make campaign` only."""
    return [
        pytest.param(value, marks=[pytest.mark.campaign] if place >= count else [])
        for place, value in enumerate(values)
    ]


def load_profile() -> None:
    """Only a campaign draws anew each time; what it finds, it prints with the line that repeats it."""
    campaign = SHARE > 1
    settings.register_profile(
        "tidings", max_examples=examples(100), deadline=None, derandomize=not campaign, print_blob=campaign
    )
    settings.load_profile("tidings")
