"""What the measurements of benchmarks/recovery.py share."""

from __future__ import annotations

import sys


def progress(what: str) -> None:
    print(f"{what} ...", file=sys.stderr, flush=True)
