"""Attribute values by exact type: the index tells kinds apart by type, so a subclass must not slip through."""

from __future__ import annotations

from collections.abc import Mapping

from tidings.core.filters.language.predicates import Scalar

USUAL_TYPES = frozenset((bool, int, float, str, bytes, type(None)))


def exact_attributes(attributes: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """The same attributes if all values are of the usual types, else a copy in which they are.

    Values of subclasses (an enumeration's members, numpy's scalars) become what they stand for, and values of
    foreign types NULL.
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
