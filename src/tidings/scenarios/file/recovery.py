"""What a file says about recovery, as the protocol takes it."""

from __future__ import annotations

from tidings.core.overlay.epidemic.settings import RecoverySettings
from tidings.scenarios.file.schema import Recovery


def recovery_settings(table: Recovery) -> RecoverySettings:
    keys = {name: getattr(table, name) for name in table.__struct_fields__ if name != "interval_ms"}
    return RecoverySettings(interval_ns=round(table.interval_ms * 1_000_000), **keys)
