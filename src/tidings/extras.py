"""The optional dependencies (extras), and the one-line error when one is missing.

A plain install publishes, subscribes, filters and runs brokers. Everything else needs an extra of pyproject.toml.
Packages that need one check here before they import it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from tidings.core.errors import MissingExtra, TidingsError

_TABLES = ("numpy", "pyarrow")
_SPARK = (*_TABLES, "scipy", "pyspark")
EXTRAS = {
    "fast": ("numpy",),
    "archive": _TABLES,
    "sim": (*_TABLES, "scipy"),
    "spark": _SPARK,
    "lab": (*_SPARK, "matplotlib"),
    "nats": ("nats",),
    "mqtt": ("paho",),
    "redis": ("redis",),
}
"""The modules that each extra must provide; it may install more."""
SLOW_MATCHING = "filters are tried one by one; if there are many: pip install 'tidings[fast]'"
"""Shown in the status of a broker without numpy."""
PACKAGES = {"nats": "nats-py", "paho": "paho-mqtt"}
"""Module -> package, where the names differ."""


def need(what: str, extra: str, *modules: str, error: type[TidingsError] = MissingExtra) -> None:
    """Raise `error`, which says what to install, if one of `modules` (default: all of the extra's) is missing."""
    missing = [
        PACKAGES.get(module, module) for module in modules or EXTRAS[extra] if not is_installed(module)
    ]
    if missing:
        raise error(sentence(what, extra, missing))


def sentence(what: str, extra: str, packages: Sequence[str]) -> str:
    *first, last = packages
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"{what} needs {listed}: pip install 'tidings[{extra}]'"


def is_installed(module: str) -> bool:
    """Return True if the module can be imported. A bare directory of that name (a namespace package) does not count."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None
