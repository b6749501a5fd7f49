"""tidings: publish/subscribe that loses nothing and shows every subscriber the same order.

    import tidings

    async with tidings.embedded(brokers=5) as bus:
        async with bus.subscribe("/news/**", where="size > 10") as stream:
            await bus.publish("/news/bbc", {"size": 12}, b"...")
            print(await stream.get())

Names are imported when they are first used, so that `import tidings` stays fast.
"""

from __future__ import annotations

from importlib import import_module

from tidings.former_paths import follow_former_paths

TYPE_CHECKING = False
"""Stands in for `typing.TYPE_CHECKING`: importing `typing` takes longer than all of this module."""
if TYPE_CHECKING:
    from typing import Any

    from tidings import sync as sync
    from tidings import testing as testing
    from tidings.bus.connect import connect as connect
    from tidings.bus.durable_stream import DurableStream as DurableStream
    from tidings.bus.embedded import embedded as embedded
    from tidings.bus.gaps import EventsMissed as EventsMissed
    from tidings.bus.gaps import Gap as Gap
    from tidings.bus.history import HistoryStream as HistoryStream
    from tidings.bus.history_reader import HistoryGap as HistoryGap
    from tidings.bus.ordered_service import OrderedService as OrderedService
    from tidings.bus.receipts import Receipt as Receipt
    from tidings.bus.service import EventService as EventService
    from tidings.bus.service import SetAside as SetAside
    from tidings.bus.stream import Stream as Stream
    from tidings.core.errors import ArchiveError as ArchiveError
    from tidings.core.errors import AttributeValueError as AttributeValueError
    from tidings.core.errors import ConnectionFailed as ConnectionFailed
    from tidings.core.errors import DeliveriesExhausted as DeliveriesExhausted
    from tidings.core.errors import FilterError as FilterError
    from tidings.core.errors import MissingExtra as MissingExtra
    from tidings.core.errors import NoResponder as NoResponder
    from tidings.core.errors import NotConfirmed as NotConfirmed
    from tidings.core.errors import NotHeld as NotHeld
    from tidings.core.errors import NotYetAvailable as NotYetAvailable
    from tidings.core.errors import OrderError as OrderError
    from tidings.core.errors import PayloadError as PayloadError
    from tidings.core.errors import PipelineError as PipelineError
    from tidings.core.errors import RequestFailed as RequestFailed
    from tidings.core.errors import ScenarioError as ScenarioError
    from tidings.core.errors import StoreError as StoreError
    from tidings.core.errors import SubscriptionRefused as SubscriptionRefused
    from tidings.core.errors import TidingsError as TidingsError
    from tidings.core.errors import TopicError as TopicError
    from tidings.core.errors import TraceError as TraceError
    from tidings.core.errors import WireError as WireError
    from tidings.core.events.event import Event as Event
    from tidings.core.events.event import EventId as EventId
    from tidings.core.events.position import OrderPosition as OrderPosition
    from tidings.core.events.topics import TopicPattern as TopicPattern
    from tidings.core.filters.language.builder import col as col
    from tidings.core.filters.language.filter import Filter as Filter
    from tidings.core.filters.language.filter import Pattern as Pattern
    from tidings.core.filters.matching.match_index import MatchIndex as MatchIndex
    from tidings.core.ordering.subscriber import Patience as Patience
    from tidings.core.overlay.epidemic.settings import RecoverySettings as RecoverySettings
    from tidings.drivers.sockets.archive_client import RemoteArchive as RemoteArchive
    from tidings.recording.recorder import Recorder as Recorder
    from tidings.storage.archive import Archive as Archive
    from tidings.storage.archive import ArchiveReader as ArchiveReader
    from tidings.storage.archive import ArchiveSettings as ArchiveSettings

__version__ = "0.1.0"

follow_former_paths()

_HOMES = {
    "tidings.storage.archive": ("Archive", "ArchiveReader", "ArchiveSettings"),
    "tidings.core.filters.language.builder": ("col",),
    "tidings.core.errors": (
        *("ArchiveError", "AttributeValueError", "ConnectionFailed", "DeliveriesExhausted", "FilterError"),
        *("MissingExtra", "NoResponder", "NotConfirmed", "NotHeld", "NotYetAvailable", "OrderError"),
        *("PayloadError", "PipelineError", "RequestFailed", "ScenarioError", "StoreError"),
        *("SubscriptionRefused", "TidingsError", "TopicError", "TraceError", "WireError"),
    ),
    "tidings.core.events.event": ("Event", "EventId"),
    "tidings.core.filters.language.filter": ("Filter", "Pattern"),
    "tidings.core.events.position": ("OrderPosition",),
    "tidings.core.events.topics": ("TopicPattern",),
    "tidings.drivers.sockets.archive_client": ("RemoteArchive",),
    "tidings.bus.connect": ("connect",),
    "tidings.bus.embedded": ("embedded",),
    "tidings.bus.ordered_service": ("OrderedService",),
    "tidings.core.overlay.epidemic.settings": ("RecoverySettings",),
    "tidings.core.ordering.subscriber": ("Patience",),
    "tidings.recording.recorder": ("Recorder",),
    "tidings.bus.durable_stream": ("DurableStream",),
    "tidings.bus.history": ("HistoryStream",),
    "tidings.bus.history_reader": ("HistoryGap",),
    "tidings.bus.service": ("EventService", "SetAside"),
    "tidings.bus.receipts": ("Receipt",),
    "tidings.bus.gaps": ("EventsMissed", "Gap"),
    "tidings.bus.stream": ("Stream",),
    "tidings.core.filters.matching.match_index": ("MatchIndex",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_ARCHIVE_NAMES = ("Archive", "ArchiveReader", "ArchiveSettings", "Recorder", "RemoteArchive")
_FORMER_NAMES = {"Place": "OrderPosition"}

_COLLECTIONS = ("SortedSet", "StrongBag", "StrongSet", "WeakBag", "WeakSet")
"""Designed, not yet available."""

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
    if name in _ARCHIVE_NAMES:
        from tidings.extras import need

        need(f"tidings.{name}", "archive")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF, "sync", "testing"])
