"""Links that lose messages on purpose, for tests and demonstrations of what recovery repairs.

Every direction of every link has its own channel (scenarios/file/channels.py), so that bursts on one say nothing about
another; with a seed, each channel draws the same for ever.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from random import Random

from tidings.scenarios.file.channels import loss_sampler
from tidings.scenarios.file.schema import Loss

MAX_CHANNELS = 200_000
"""Beyond so many peers all channels start anew: whoever makes us answer strangers fills no memory."""


class LossyLinks:
    def __init__(self, loss: Loss, seed: int | None = None) -> None:
        self.lost = 0
        """Messages that were dropped on purpose."""
        self._loss = loss
        self._seed = secrets.randbits(64) if seed is None else seed
        self._channels: dict[str, Callable[[], bool] | None] = {}

    def loses(self, link: str) -> bool:
        """Is the next message on that link lost? It counts as sent: ask once per message."""
        if link not in self._channels:
            if len(self._channels) >= MAX_CHANNELS:
                self._channels.clear()
            self._channels[link] = loss_sampler(self._loss, Random(f"{self._seed}:loss:{link}"))
        channel = self._channels[link]
        lost = channel is not None and channel()
        self.lost += lost
        return lost
