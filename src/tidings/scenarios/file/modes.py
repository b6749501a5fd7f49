"""Rejects modes of [overlay] that the file format knows but this version does not run."""

from __future__ import annotations

from typing import get_args

from tidings.core.errors import NotYetAvailable
from tidings.core.overlay.modes import MODES
from tidings.scenarios.file.schema import Mode


def check_available(mode: str, key: str = "mode") -> None:
    """Raise NotYetAvailable for a known mode that does not run yet."""
    if mode in get_args(Mode) and mode not in MODES:
        available = ", ".join(f'"{known}"' for known in MODES)
        raise NotYetAvailable(f'{key}: "{mode}" is not yet available; available: {available}')
