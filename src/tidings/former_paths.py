"""Keeps former import paths, which documents and examples have named, working after modules moved."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

FORMER = {
    "tidings.archive": "tidings.storage.archive",
    "tidings.trace": "tidings.scenarios.trace",
    "tidings.services": "tidings.drivers.adapters",
    "tidings.net": "tidings.drivers.sockets",
    "tidings.net.address": "tidings.drivers.address",
    "tidings.protocol": "tidings.core",
    "tidings.protocol.sequencing": "tidings.core.ordering",
}
"""Former path -> present path: packages, with everything in them, and single modules."""


class _Alias:
    """Loads a module under its former name.

    It does not inherit from `importlib.abc.Loader`, whose import takes longer than all of this package.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # both names are the same module, which keeps its own spec


class _FormerPaths:
    """Finds modules under former names, as an entry of `sys.meta_path`."""

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        former, rest = fullname, ""
        while former not in FORMER:
            former, separator, last = former.rpartition(".")
            if not separator:
                return None
            rest = f".{last}{rest}"
        return ModuleSpec(fullname, _Alias(FORMER[former] + rest))  # type: ignore[arg-type]


def follow_former_paths() -> None:
    """Make the former paths importable."""
    sys.meta_path.insert(0, _FormerPaths())
