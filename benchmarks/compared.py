"""Packages that benchmarks compare with; tidings itself needs none of them."""

import sys
from importlib import import_module
from typing import Any


def compared(name: str) -> Any:
    """The package, or a line that says how to get it."""
    try:
        return import_module(name)
    except ImportError:
        sys.exit(
            f"{name} is not installed: `make bench` installs it, or pip install -r benchmarks/requirements.txt"
        )
