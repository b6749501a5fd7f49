"""What users are told where Spark cannot be had, or fails, or they have had enough."""

from __future__ import annotations

import socket

import pytest

from tidings.core.errors import PipelineError
from tidings.spark.session import check_master
from tidings.spark.sweep.driver import reason_of
from tidings.spark.tasks import _interrupted


def test_a_master_that_nobody_listens_at_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        check_master(f"spark://127.0.0.1:{port}")
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    with pytest.raises(PipelineError, match=f"cannot reach a Spark master at 127.0.0.1:{port}: "):
        check_master(f"spark://127.0.0.1:{port}")
    for master in ("local[2]", "yarn", "k8s://https://10.0.0.1"):
        check_master(master)


@pytest.mark.parametrize(
    "master", ["spark://", "spark://host", "spark://host:", "spark://host:x", "spark://h:70000"]
)
def test_an_address_that_is_none(master: str) -> None:
    with pytest.raises(
        PipelineError, match="is not the address of a Spark master: expected spark://HOST:PORT"
    ):
        check_master(master)


def test_an_interrupt_is_found_behind_what_spark_says_of_it() -> None:
    def fails() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("the job was cancelled")

    with pytest.raises(RuntimeError) as raised:
        fails()
    assert _interrupted(raised.value)
    assert not _interrupted(RuntimeError("another"))
    assert not _interrupted(None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "An error occurred while calling o1.x.\n: org.apache.spark.SparkException: Job aborted.\n\tat a.b(C:1)\n"
            "Caused by: java.io.IOException: no room\n\tat d.e(Error.scala:3)\n",
            "Caused by: java.io.IOException: no room",
        ),
        ("An error occurred.\n: org.apache.spark.SparkException: Job aborted.\n\tat a.b(C:1)\n", None),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_says_most(text: str, reason: str | None) -> None:
    assert reason_of(RuntimeError(text)) == (reason or "org.apache.spark.SparkException: Job aborted.")
