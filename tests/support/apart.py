"""Runs a part of a test in a process of its own, with other limits, rights or mounts than the test's.

It is forked from a server that has imported the archive, so that starting it takes no time.
"""

from __future__ import annotations

import ctypes
import inspect
import multiprocessing
import os
import runpy
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

WAIT_S = 120
_CLONE_NEWNS, _MS_PRIVATE, _MS_REC = 0x20000, 1 << 18, 1 << 14
_CAPABILITIES_VERSION = 0x20080522
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["__main__", "pytest", "tidings.storage.archive"])
_libc = ctypes.CDLL(None, use_errno=True)


class Impossible(Exception):
    """This machine does not allow what the test needs."""


def run_apart(run: Callable[..., None], directory: Path, *arguments: object) -> None:
    """`run(directory, *arguments)` in a new process; its failure is the test's."""
    outcome = directory.with_name(f"{directory.name}.outcome")
    process = context.Process(
        target=_run, args=(outcome, inspect.getfile(run), run.__name__, directory, *arguments), daemon=True
    )
    process.start()
    process.join(WAIT_S)
    if process.exitcode is None:
        process.kill()
    text = outcome.read_text() if outcome.exists() else f"the process ended with {process.exitcode}"
    if text.startswith("impossible"):
        pytest.skip(text)
    assert text == "fine", text


def _run(outcome: Path, file_name: str, function: str, *arguments: object) -> None:
    """Test modules have no name under which another process could import them."""
    file = outcome.open("w")  # before it cannot be
    try:
        runpy.run_path(file_name)[function](*arguments)
    except Impossible as error:
        file.write(f"impossible here: {error}")
    except BaseException:
        file.write(traceback.format_exc())
    else:
        file.write("fine")
    file.close()


def mount_small_disk(directory: Path, size_bytes: int) -> None:
    """For this process alone."""
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"none", b"/", None, _MS_PRIVATE | _MS_REC, None)
    _call("mount", b"tmpfs", os.fsencode(directory), b"tmpfs", 0, f"size={size_bytes}".encode())


def obey_file_modes() -> None:
    """Root may write everywhere; this process may not any more."""
    if os.geteuid() != 0:
        return
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()
    _call("capget", header, sets)
    sets[0] &= ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    _call("capset", header, sets)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        raise Impossible(f"{name}: {os.strerror(ctypes.get_errno())}")
