"""What tidings needs beyond its plain install, and the one line that says so where it is missing.

A plain install publishes, subscribes, filters and runs brokers. Whatever else needs libraries, by the names that
pyproject.toml gives to sets of them: extras. Packages that need one ask here before they import it.
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
"""The modules without which nothing that the extra is for works; it may bring more."""
SLOW_MATCHING = "filters are tried one by one; if there are many: pip install 'tidings[fast]'"
"""What a broker without numpy says in its status."""
PACKAGES = {"nats": "nats-py", "paho": "paho-mqtt"}
"""Where a module's package has another name."""


def need(what: str, extra: str, *modules: str, error: type[TidingsError] = MissingExtra) -> None:
    """Raises `error`, which says what to install, if one of these modules is missing; without any: of the extra's."""
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
    """A mere directory of that name, which Python would take for a package, does not count."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None
