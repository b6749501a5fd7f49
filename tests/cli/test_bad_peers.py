"""A server that does not speak our protocol: one clear line and exit code 4, whatever it sends."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from command import tidings
from tidings.core.messages import Hello, Refused, Welcome
from tidings.core.wire.codec import encode
from tidings.core.wire.frames import frame


@contextmanager
def server_that_sends(answer: bytes) -> Iterator[int]:
    """Takes connections until the block ends, answers the first bytes of each with `answer`, and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(5)
                connection.recv(4096)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        done.set()
        thread.join()
        listener.close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"\xff\xff\xff\xff" + bytes(100), "a frame of 4294967295 bytes"),
        (b"\0\0\0\x20abc", "the stream ended inside a frame"),
        (frame(b"\xc1\xc1"), "not a message"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of 1213486160 bytes"),
        (frame(encode(Welcome(9, "b0"))), "the broker speaks protocol version 9, we speak 2"),
        (frame(encode(Refused("wrong or missing token"))), "wrong or missing token"),
        (frame(encode(Hello(1, "b0", "broker"))), "cannot reach"),
    ],
    ids=[
        "oversized",
        "truncated",
        "garbage",
        "another protocol",
        "unknown version",
        "refusal",
        "wrong message",
    ],
)
def test_one_line_and_exit_code_4(answer: bytes, said: str) -> None:
    with server_that_sends(answer) as port:
        result = tidings("sub", f"tidings://127.0.0.1:{port}", "/a")
    assert result.returncode == 4
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith("tidings: ")
