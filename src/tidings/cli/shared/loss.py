"""Parses deliberate loss as users write it: `0.1` is a share of what is sent, `0.1:3` the same in bursts of three."""

from __future__ import annotations

from math import isfinite

import typer

from tidings.scenarios.file.schema import BernoulliLoss, GilbertLoss, Loss

MAX_BURST = 1e9


def parse_loss(text: str, flag: str = "--loss") -> Loss | None:
    """Return the loss; None if nothing is to be lost."""
    rate_text, separator, burst_text = text.partition(":")
    rate = _number(rate_text, text, flag)
    if not 0 <= rate < 1:
        raise typer.BadParameter(f"the rate must be at least 0 and below 1, not {rate_text}", param_hint=flag)
    if not separator:
        return BernoulliLoss(rate=rate) if rate else None
    burst = _number(burst_text, text, flag)
    if not 1 <= burst <= MAX_BURST:
        raise typer.BadParameter(f"the burst must be at least 1 message, not {burst_text}", param_hint=flag)
    if rate > burst / (burst + 1):  # at least one message gets through between two bursts
        most = f"{burst / (burst + 1):.4g}"
        raise typer.BadParameter(f"bursts of {burst_text} allow a rate of at most {most}", param_hint=flag)
    return GilbertLoss(rate=rate, burst=burst) if rate else None


def _number(text: str, whole: str, flag: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise typer.BadParameter(f"expected RATE or RATE:BURST, not {whole!r}", param_hint=flag)
    return value
