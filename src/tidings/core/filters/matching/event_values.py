"""Converts attribute values to exact types: the index distinguishes kinds by type, so a subclass would be missed."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.core.filters.language.predicates import Scalar

USUAL_TYPES = frozenset((bool, int, float, str, bytes, type(None)))


def exact_attributes(attributes: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """Return the attributes if all values have the usual types, else a copy in which they do.

    Values of subclasses (members of an enumeration, numpy scalars) are converted to the base type; values of other
    types become NULL.
    """
    if USUAL_TYPES.issuperset(map(type, attributes.values())):
        return attributes
    return {name: _exact(value) for name, value in attributes.items()}


def _exact(value: object) -> Scalar:
    if type(value) in USUAL_TYPES:
        return value  # type: ignore[return-value]
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes.__bytes__(value)
    return None
