"""A short filter that is long in its canonical form, in which brokers tell and keep it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import tidings
from recording_network import guaranteed_broker, running

LONG = " AND ".join(f"(a{n} = 1 OR b{n} = 2)" for n in range(8))
SHORTER = " AND ".join(f"(a{n} = 1 OR b{n} = 2)" for n in range(6))


@pytest.mark.parametrize("mode", ["best-effort", "guaranteed", "epidemic"])
def test_what_brokers_could_not_read_again_is_refused(mode: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), tidings.embedded(brokers=2, mode=mode) as bus:
            with pytest.raises(tidings.SubscriptionRefused, match="in its canonical form the filter has"):
                async with bus.subscribe("/a", where=LONG):
                    pass
            async with bus.connect() as other, bus.subscribe("/a", where=SHORTER) as stream:
                await other.publish("/a", {f"a{n}": 1 for n in range(6)})
                assert (await stream.get(10)).topic == "/a"

    asyncio.run(main())


def test_what_is_accepted_outlives_its_broker(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            first = guaranteed_broker(tmp_path)
            async with running(first) as url, tidings.connect(url, name="reader") as bus:
                async with bus.subscribe("/a", where=SHORTER) as stream:
                    await first.stop()
                    async with running(guaranteed_broker(tmp_path, first.address.port)):
                        await bus.publish("/a", {f"b{n}": 2 for n in range(6)})
                        assert (await stream.get(20)).topic == "/a"

    asyncio.run(main())
