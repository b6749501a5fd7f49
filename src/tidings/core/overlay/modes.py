"""The modes in which brokers run. Everything that offers a choice of modes takes it from here."""

from __future__ import annotations

from typing import Final, Literal, get_args

BrokerMode = Literal["best-effort", "guaranteed", "epidemic"]

MODES: tuple[BrokerMode, ...] = get_args(BrokerMode)
BEST_EFFORT: Final = "best-effort"
GUARANTEED: Final = "guaranteed"
EPIDEMIC: Final = "epidemic"
