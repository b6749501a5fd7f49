"""When events expire: what `expires=` of `publish` means."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from tidings.core.events.payload import Payload, TypedPayload, typed_payload

Expiry = timedelta | float
"""How long after its publication an event may be shown: a timedelta, or seconds."""
LONGEST_S = 1e9


def expiring(payload: Payload, expires: Expiry | None, now: int) -> Payload:
    """Return the payload of an event that is published now and may be shown for this long.

    Raise ValueError if that is no duration, PayloadError if the payload cannot be encoded.
    """
    if expires is None:
        return payload
    expires_at = now + duration_ns(expires)
    if isinstance(payload, TypedPayload):
        return msgspec.structs.replace(payload, expires_at=expires_at)
    return typed_payload(payload, expires_at=expires_at)


def duration_ns(expires: Expiry) -> int:
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= LONGEST_S:
        raise ValueError(f"expires must be a positive duration of at most {LONGEST_S:.0e} s, not {expires!r}")
    return max(round(seconds * 1e9), 1)
