"""Ports for networks whose brokers listen side by side."""

import random

from tidings.drivers.processes.brokers import is_free


def base_port(count: int) -> int:
    """The first of `count` ports in a row of which none is in use just now."""
    while True:
        port = random.randrange(15_000, 31_000)
        if all(is_free("127.0.0.1", number) for number in range(port, port + count)):
            return port
