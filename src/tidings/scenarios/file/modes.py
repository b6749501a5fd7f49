"""Modes of [overlay] that this version does not run: the file format knows more."""

from __future__ import annotations

from typing import get_args

from tidings.core.errors import NotYetAvailable
from tidings.core.overlay.modes import MODES
from tidings.scenarios.file.schema import Mode


def check_available(mode: str, key: str = "mode") -> None:
    """NotYetAvailable for a mode that is known and does not run yet."""
    if mode in get_args(Mode) and mode not in MODES:
        available = ", ".join(f'"{known}"' for known in MODES)
        raise NotYetAvailable(f'{key}: "{mode}" is not yet available; available: {available}')
