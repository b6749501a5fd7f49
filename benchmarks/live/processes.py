"""The parent's side of a measurement: client processes, and what a process costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STOP_TIMEOUT_S = 20.0


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the user and system time of these processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def resident_bytes(pids: Iterable[int]) -> int:
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES for pid in pids)


class ClientJob(Protocol):
    """What a process must do; passed as JSON."""

    @property
    def system(self) -> str: ...
    @property
    def role(self) -> str: ...


class Worker:
    """A client process, by default `live.worker`, which answers in JSON lines."""

    def __init__(self, job: ClientJob, module: str = "live.worker") -> None:
        self.job = job
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, msgspec.json.encode(job).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(
                f"{self.job.system}: the process with role {self.job.role!r} ended with {self._process.wait()}"
            )
        heard: dict[str, Any] = json.loads(line)
        return heard

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close_input(self) -> None:
        """End the worker by closing its input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        assert self._process.stdout is not None
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def workers(jobs: Iterable[ClientJob], module: str = "live.worker") -> Iterator[list[Worker]]:
    """Start the workers, and wait until all are ready."""
    started = [Worker(job, module) for job in jobs]
    try:
        for worker in started:
            worker.hear()
        yield started
    finally:
        for worker in started:
            worker.close_input()
        for worker in started:
            worker.end()
