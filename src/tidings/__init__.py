"""tidings: publish/subscribe that loses nothing and shows every subscriber the same order.

    import tidings

    async with tidings.embedded(brokers=5) as bus:
        async with bus.subscribe("/news/**", where="size > 10") as stream:
            await bus.publish("/news/bbc", {"size": 12}, b"...")
            print(await stream.get())

Names are imported when they are first used, so that `import tidings` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidings import sync as sync
    from tidings import testing as testing
    from tidings.archive import Archive as Archive
    from tidings.archive import ArchiveReader as ArchiveReader
    from tidings.archive import ArchiveSettings as ArchiveSettings
    from tidings.model.builder import col as col
    from tidings.model.errors import ArchiveError as ArchiveError
    from tidings.model.errors import AttributeValueError as AttributeValueError
    from tidings.model.errors import ConnectionFailed as ConnectionFailed
    from tidings.model.errors import FilterError as FilterError
    from tidings.model.errors import NotConfirmed as NotConfirmed
    from tidings.model.errors import NotYetAvailable as NotYetAvailable
    from tidings.model.errors import OrderError as OrderError
    from tidings.model.errors import PipelineError as PipelineError
    from tidings.model.errors import ScenarioError as ScenarioError
    from tidings.model.errors import StoreError as StoreError
    from tidings.model.errors import SubscriptionRefused as SubscriptionRefused
    from tidings.model.errors import TidingsError as TidingsError
    from tidings.model.errors import TopicError as TopicError
    from tidings.model.errors import TraceError as TraceError
    from tidings.model.errors import WireError as WireError
    from tidings.model.event import Event as Event
    from tidings.model.event import EventId as EventId
    from tidings.model.filter import Filter as Filter
    from tidings.model.filter import Pattern as Pattern
    from tidings.model.position import OrderPosition as OrderPosition
    from tidings.model.topics import TopicPattern as TopicPattern
    from tidings.net.archive_client import RemoteArchive as RemoteArchive
    from tidings.opening import connect as connect
    from tidings.opening import embedded as embedded
    from tidings.ordering.service import OrderedService as OrderedService
    from tidings.protocol.recovery.settings import RecoverySettings as RecoverySettings
    from tidings.protocol.sequencing.subscriber import Patience as Patience
    from tidings.recording.recorder import Recorder as Recorder
    from tidings.services.receipts import Receipt as Receipt
    from tidings.services.service import EventService as EventService
    from tidings.services.stream import EventsMissed as EventsMissed
    from tidings.services.stream import Stream as Stream
    from tidings.structures.match_index import MatchIndex as MatchIndex

__version__ = "0.1.0"

_HOMES = {
    "tidings.archive": ("Archive", "ArchiveReader", "ArchiveSettings"),
    "tidings.model.builder": ("col",),
    "tidings.model.errors": (
        *("ArchiveError", "AttributeValueError", "ConnectionFailed", "FilterError", "NotConfirmed"),
        *("NotYetAvailable", "OrderError", "PipelineError", "ScenarioError", "StoreError"),
        *("SubscriptionRefused", "TidingsError", "TopicError", "TraceError", "WireError"),
    ),
    "tidings.model.event": ("Event", "EventId"),
    "tidings.model.filter": ("Filter", "Pattern"),
    "tidings.model.position": ("OrderPosition",),
    "tidings.model.topics": ("TopicPattern",),
    "tidings.net.archive_client": ("RemoteArchive",),
    "tidings.opening": ("connect", "embedded"),
    "tidings.ordering.service": ("OrderedService",),
    "tidings.protocol.recovery.settings": ("RecoverySettings",),
    "tidings.protocol.sequencing.subscriber": ("Patience",),
    "tidings.recording.recorder": ("Recorder",),
    "tidings.services.service": ("EventService",),
    "tidings.services.receipts": ("Receipt",),
    "tidings.services.stream": ("EventsMissed", "Stream"),
    "tidings.structures.match_index": ("MatchIndex",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_FORMER_NAMES = {"Place": "OrderPosition"}

_COLLECTIONS = ("SortedSet", "StrongBag", "StrongSet", "WeakBag", "WeakSet")
"""Of the design, and of later."""

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    if name in ("sync", "testing"):
        return import_module(f"tidings.{name}")
    name = _FORMER_NAMES.get(name, name)
    home = _HOME_OF.get(name)
    if home is None:
        if name in _COLLECTIONS:
            raise AttributeError(f"tidings.{name}: the collections are not yet available")
        raise AttributeError(f"module 'tidings' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF, "sync", "testing"])
