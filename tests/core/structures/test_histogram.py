"""The histogram against the sorted list of its values."""

from __future__ import annotations

from math import ceil
from statistics import fmean, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.structures.histogram import Histogram, rounded

values = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 10**15)), max_size=120)
SHARES = (0.0, 0.01, 0.5, 0.9, 0.99, 1.0)


def filled(values: list[int], max_distinct: int) -> Histogram:
    histogram = Histogram(max_distinct)
    for value in values:
        histogram.add(value)
    return histogram


def quantile(values: list[int], share: float) -> int:
    return sorted(values)[max(1, ceil(share * len(values))) - 1] if values else 0


@given(values, st.sampled_from([1, 5, 1_000]))
@settings(max_examples=examples(300))
def test_count_mean_deviation_and_maximum_are_exact_however_little_it_may_hold(
    values: list[int], max_distinct: int
) -> None:
    histogram = filled(values, max_distinct)
    assert histogram.count == len(values)
    assert histogram.maximum == max(values, default=0)
    assert histogram.mean == pytest.approx(fmean(values) if values else 0.0)
    assert histogram.deviation == pytest.approx(pstdev(values) if values else 0.0, rel=1e-6, abs=1e-6)


@given(values)
@settings(max_examples=examples(200))
def test_quantiles_are_exact_while_there_is_room(values: list[int]) -> None:
    histogram = filled(values, 1_000)
    assert [histogram.quantile(share) for share in SHARES] == [quantile(values, share) for share in SHARES]


@given(values, st.integers(1, 10))
@settings(max_examples=examples(200))
def test_beyond_that_quantiles_are_low_by_less_than_a_thousandth(
    values: list[int], max_distinct: int
) -> None:
    histogram = filled(values, max_distinct)
    for share in SHARES:
        exact = quantile(values, share)
        assert exact * (1 - 1 / 1_000) <= histogram.quantile(share) <= exact


@given(st.integers(0, 2**70))
def test_rounding_keeps_the_leading_bits(value: int) -> None:
    assert value - value // 1_000 <= rounded(value) <= value
    assert rounded(rounded(value)) == rounded(value)
    assert rounded(value).bit_length() == value.bit_length()


def test_memory_is_bounded_whatever_the_values() -> None:
    histogram = Histogram(100)
    for value in range(200_000):
        histogram.add(value * 977)
    assert len(histogram._exact) <= 100
    assert len(histogram._rounded) < 20_000
