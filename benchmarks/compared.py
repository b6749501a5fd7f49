"""Packages that benchmarks compare with; tidings itself needs none of them."""

import sys
from importlib import import_module
from typing import Any


def compared(name: str) -> Any:
    """Import a package, or exit with a line that says how to install it."""
    try:
        return import_module(name)
    except ImportError:
        sys.exit(f"{name} is not installed: run `make bench`, or pip install -r benchmarks/requirements.txt")
