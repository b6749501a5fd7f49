"""Runs a function in a child process, so that a crash or a hang costs one run and not the worker.

The system kills a run that takes all the memory; in a worker of Spark's, the job and the whole sweep would fail after
some attempts. The child is forked, and has all that its parent has imported.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

END_SECONDS = 10.0
"""How long a child may take to end after it has sent its result."""
WATCH_SECONDS = 1.0

Result = dict[str, Any]


class RunDied(Exception):  # noqa: N818 - said of the run, to a person
    """The child ended without a result."""


class RunTimedOut(Exception):  # noqa: N818
    """The child was not done in time."""


def isolated(run: Callable[[], Result], timeout_s: float | None = None) -> Result:
    """Return what `run` returns, which must fit JSON; RunDied or RunTimedOut if there is no result."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_result, args=(run, sender, os.getpid()))
    child.start()
    sender.close()
    try:
        if not receiver.poll(timeout_s):
            raise RunTimedOut(f"timed out after {timeout_s:g} s")
        result: Result = json.loads(receiver.recv_bytes())
        child.join(END_SECONDS)
        return result
    except EOFError:
        child.join(END_SECONDS)
        raise RunDied(_death(child.exitcode)) from None
    finally:
        receiver.close()
        if child.exitcode is None:
            child.kill()
            child.join()
        child.close()


def _send_result(run: Callable[[], Result], sender: Connection, parent: int) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    sender.send_bytes(json.dumps(run()).encode())


def _end_with(parent: int) -> None:
    """End this process with its parent: nobody needs the result of a run whose worker was killed."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        hint = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
        return f"the process of the run was killed by {name}{hint}"
    return f"the process of the run ended with code {code}"
