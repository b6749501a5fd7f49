"""Starts the command line. It imports next to nothing, so that Ctrl-C is quiet from the first moment on."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def exit_quietly_on_sigint() -> None:
    """Exit on SIGINT while nothing needs cleaning up. Does nothing if a shell started us in the background, with SIGINT
    ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))


def main() -> None:
    exit_quietly_on_sigint()  # while the rest is imported
    from tidings.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
