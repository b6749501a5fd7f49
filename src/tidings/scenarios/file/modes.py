"""Which modes of [overlay] this version runs; the file format knows more."""

from __future__ import annotations

from typing import get_args

from tidings.core.errors import NotYetAvailable
from tidings.scenarios.file.schema import Mode

AVAILABLE_MODES: tuple[Mode, ...] = ("best-effort", "guaranteed", "epidemic")


def check_available(mode: str, key: str = "mode") -> None:
    """NotYetAvailable for a mode that is known and does not run yet."""
    if mode in get_args(Mode) and mode not in AVAILABLE_MODES:
        available = ", ".join(f'"{known}"' for known in AVAILABLE_MODES)
        raise NotYetAvailable(f'{key}: "{mode}" is not yet available; available: {available}')
