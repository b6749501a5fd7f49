"""A publishing name and its query, over a live chain of brokers; no Spark is needed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tidings
from network_thread import NetworkThread
from tidings.core.errors import PipelineError
from tidings.spark.format.sink_name import claim_name
from tidings.spark.format.sink_publishing import SinkTarget

pytestmark = pytest.mark.timeout(150)

ONE, OTHER = str(uuid.uuid4()), str(uuid.uuid4())


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkThread]:
    with NetworkThread(tmp_path_factory.mktemp("network")) as running:
        yield running


def claim(network: NetworkThread, name: str, query: str, at: str, patience_s: float = 0.0) -> None:
    claim_name(SinkTarget(network.url(at)), name, query, patience_s)


def test_the_tasks_of_a_query_claim_its_name_at_once(network: NetworkThread) -> None:
    with ThreadPoolExecutor(8) as tasks:
        brokers = [f"b{task % 3}" for task in range(16)]
        assert not any(tasks.map(lambda at: claim(network, "feed", ONE, at), brokers))
    for at in ("b0", "b1", "b2"):
        with pytest.raises(
            PipelineError, match=r"^option durable: 'feed' belongs to another query: start that one"
        ):
            claim(network, "feed", OTHER, at)
        claim(network, "feed", ONE, at)


def test_the_name_outlives_its_broker_and_ends_when_it_is_cancelled(network: NetworkThread) -> None:
    claim(network, "lasting", ONE, "b2")
    network.stop("b2")
    network.start("b2")
    with pytest.raises(PipelineError, match="belongs to another query"):
        claim(network, "lasting", OTHER, "b2", patience_s=30)

    async def cancel() -> None:
        async with tidings.connect(network.url("b2")) as bus:
            await bus.cancel_durable("lasting")

    network.run(cancel())
    claim(network, "lasting", OTHER, "b2")


def test_the_name_of_a_subscription_is_not_for_publishing(network: NetworkThread, tmp_path: Path) -> None:
    async def subscribe() -> None:
        async with tidings.connect(network.url("b1")) as bus:
            async with bus.subscribe("/a", durable="orders"):
                pass
            async with bus.subscribe("/a", group="workers"):
                pass

    network.run(subscribe())
    for name in ("orders", "workers"):
        with pytest.raises(PipelineError, match=f"'{name}' is the name of a durable subscription or a group"):
            claim(network, name, ONE, "b0")


def test_a_broker_that_is_away_is_told(network: NetworkThread) -> None:
    with pytest.raises(PipelineError, match=r"^cannot reach tidings://127\.0\.0\.1:1: connection refused$"):
        claim_name(SinkTarget("tidings://127.0.0.1:1"), "feed", ONE, 0.0)
