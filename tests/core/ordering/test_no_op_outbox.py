"""No-ops reach the service however often it refuses them: the sequencer says them once."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from ordered_clients import TIMEOUT_S, numbers, run, take
from tidings.bus import no_op_publisher as no_ops
from tidings.bus.embedded import Embedded
from tidings.bus.receipts import Batch
from tidings.core.errors import NotConfirmed
from tidings.core.events.run import Stretch
from troubled_service import TroubledService, troubled_client


class Refusing(TroubledService):
    """Refuses the first few events."""

    refusals = 3

    async def send(self, stretch: Stretch) -> Batch:
        if Refusing.refusals:
            Refusing.refusals -= 1
            raise NotConfirmed("not now")
        return await super().send(stretch)


def test_no_ops_that_the_service_refuses_are_published_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(no_ops, "RETRY_S", 0.01)

    async def scenario(bus: Embedded) -> None:
        assert bus._no_ops is not None
        make_service = bus._no_ops._make_service
        bus._no_ops._make_service = lambda: Refusing(make_service(), Random(0))
        async with bus.connect("b1") as reader, reader.subscribe("/a", order="total") as stream:
            leaver, service = troubled_client(bus, "b2", "leaver")
            service.hangs = True
            await leaver.open()
            under_way = [asyncio.create_task(leaver.publish("/a", {"n": 0})) for _ in range(3)]
            await asyncio.sleep(0.02)
            await leaver.close()
            await asyncio.gather(*under_way, return_exceptions=True)
            await bus.publish("/a", {"n": 1})
            assert numbers(await take(stream, 1)) == [1]
            async with asyncio.timeout(TIMEOUT_S):
                while _kept(bus):  # noqa: ASYNC110 - a few turns
                    await asyncio.sleep(0.001)
        assert not Refusing.refusals

    with caplog.at_level(logging.WARNING, "tidings"):
        run(scenario, mode="guaranteed")
    assert [record.message for record in caplog.records] == ["cannot publish no-ops yet, retrying: not now"]


def _kept(bus: Embedded) -> int:
    """What the sequencer keeps because it does not know that the service has it."""
    assert bus.ordering is not None
    [replica] = bus.ordering.sequencer("sequencer").sequencer.replicas.values()
    assert replica.machine is not None
    return len(replica.machine.no_ops)
