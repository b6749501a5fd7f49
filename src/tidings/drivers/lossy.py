"""Loses messages on purpose, to test and demonstrate recovery.

Every direction of every link has its own channel (scenarios/file/channels.py), so that bursts on one are independent of
another. With a seed, each channel always draws the same losses.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from random import Random

from tidings.scenarios.file.channels import loss_sampler
from tidings.scenarios.file.schema import Loss

MAX_CHANNELS = 200_000
"""Beyond so many peers all channels start anew, so that answers to strangers cannot fill the memory."""


class LossyLinks:
    """Decides for every message whether it is lost."""

    def __init__(self, loss: Loss, seed: int | None = None) -> None:
        self.lost = 0
        """Messages dropped on purpose so far."""
        self._loss = loss
        self._seed = secrets.randbits(64) if seed is None else seed
        self._channels: dict[str, Callable[[], bool] | None] = {}

    def loses(self, link: str) -> bool:
        """Return True if the next message on that link is lost. Call it once per message: every call counts."""
        if link not in self._channels:
            if len(self._channels) >= MAX_CHANNELS:
                self._channels.clear()
            self._channels[link] = loss_sampler(self._loss, Random(f"{self._seed}:loss:{link}"))
        channel = self._channels[link]
        lost = channel is not None and channel()
        self.lost += lost
        return lost
