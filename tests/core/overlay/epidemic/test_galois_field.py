"""GF(2^8) against the galois package."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.overlay.epidemic import galois_field
from tidings.core.overlay.epidemic.galois_field import (
    add,
    combine,
    combine_many,
    invert,
    invert_matrix,
    multiply,
    scale,
)

Oracle = Any
unhurried = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def field() -> Oracle:
    import galois  # half a second for who collects tests

    return galois.GF(2**8, irreducible_poly=galois_field.POLYNOMIAL)


def array(field: Oracle, rows: list[bytes]) -> Oracle:
    return field(np.array([list(row) for row in rows], dtype=np.uint8))


def product(field: Oracle, matrix: list[bytes], rows: list[bytes]) -> list[bytes]:
    return [bytes(row.tolist()) for row in array(field, matrix) @ array(field, rows)]


@pytest.mark.slow
def test_every_product_and_every_inverse(field: Oracle) -> None:
    elements = field(np.arange(256, dtype=np.uint8))
    table = np.multiply.outer(elements, elements)
    assert [[multiply(a, b) for b in range(256)] for a in range(256)] == table.tolist()
    assert [invert(a) for a in range(1, 256)] == np.reciprocal(elements[1:]).tolist()
    with pytest.raises(ZeroDivisionError):
        invert(0)


@given(st.binary(max_size=200), st.integers(0, 255), st.data())
@unhurried
def test_rows_are_scaled_and_added_element_by_element(row: bytes, constant: int, data: st.DataObject) -> None:
    other = data.draw(st.binary(min_size=len(row), max_size=len(row)))
    assert scale(row, constant) == bytes(multiply(a, constant) for a in row)
    assert add(row, other) == bytes(a ^ b for a, b in zip(row, other, strict=True))


@pytest.mark.slow
@given(
    st.integers(1, 20), st.integers(0, 20), st.sampled_from([0, 1, 2, 31, 32, 33, 63, 64, 65, 300]), st.data()
)
@unhurried
def test_products_of_matrices(
    field: Oracle, inputs: int, outputs: int, width: int, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.binary(min_size=width, max_size=width), min_size=inputs, max_size=inputs))
    lines = st.binary(min_size=inputs, max_size=inputs)
    matrix = data.draw(st.lists(lines, min_size=outputs, max_size=outputs))
    found = combine_many(matrix, rows)
    assert found == [combine(line, rows) for line in matrix]
    if width and outputs:
        assert found == product(field, matrix, rows)
    else:
        assert found == [b""] * outputs


@given(st.integers(1, 17), st.integers(0, 2**32), st.sampled_from([2, 256]))
@unhurried
def test_inverses_of_matrices(field: Oracle, size: int, seed: int, different: int) -> None:
    """Of random ones, which nearly all have one, and of zeros and ones, many of which have none."""
    random = Random(seed)
    matrix = [bytes(random.randrange(different) for _ in range(size)) for _ in range(size)]
    if np.linalg.matrix_rank(array(field, matrix)) < size:
        with pytest.raises(ValueError, match="not independent"):
            invert_matrix(matrix)
    else:
        assert invert_matrix(matrix) == [bytes(row.tolist()) for row in np.linalg.inv(array(field, matrix))]


@pytest.mark.parametrize("matrix", [[], [b""], [b"\1\2"], [b"\1\2", b"\1"]])
def test_a_matrix_that_is_not_square_has_no_inverse(matrix: list[bytes]) -> None:
    with pytest.raises(ValueError, match="not square"):
        invert_matrix(matrix)


@pytest.mark.parametrize(
    ("matrix", "rows"),
    [
        ([b"\1\2"], [b"abc", b"ab"]),
        ([b"\1\2"], [bytes(2_000), bytes(1_999)]),
        ([b"\1"], [bytes(2_000), bytes(2_000)]),
        ([b"\1\2", b"\1\2\3"], [bytes(2_000), bytes(2_000)]),
        ([b""], []),
    ],
)
def test_lengths_must_agree(matrix: list[bytes], rows: list[bytes]) -> None:
    with pytest.raises(ValueError):
        combine_many(matrix, rows)


def test_rows_of_different_lengths_are_not_added() -> None:
    with pytest.raises(ValueError):
        add(b"a", b"ab")
