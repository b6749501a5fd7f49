"""Runs servers of other systems as child processes, on free ports of loopback."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0


def find_server(program: str) -> str:
    """Return the program's path, beside our Python or among the system's programs."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"])
    found = shutil.which(program, path=places)
    if found is None:
        raise FileNotFoundError(f"{program} is not installed: run make setup")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(directory: Path, port: int, program: str, *arguments: str) -> Iterator[int]:
    """Its pid, once it takes connections."""
    log = directory / "server.log"
    with running([find_server(program), *arguments], directory, log) as process:
        ends_at = time.monotonic() + START_TIMEOUT_S
        while not takes_connections(port):
            if process.poll() is not None or time.monotonic() > ends_at:
                raise ChildProcessError(f"{program} did not start: {log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.02)
        yield process.pid


@contextmanager
def running(command: Sequence[str], directory: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=directory)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def takes_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
