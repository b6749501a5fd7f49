"""The errors that tidings raises for a mistake of its user or of a peer. Every message names what and where."""


class TidingsError(Exception):
    """Base of all errors that tidings raises on purpose."""


class FilterError(TidingsError):
    """A filter that cannot be used. `position` counts characters from 0, or is None where there is none."""

    def __init__(self, message: str, *, sql: str = "", position: int | None = None) -> None:
        self.sql = sql
        self.position = position
        super().__init__(message if position is None else f"{message} (at position {position} of {sql!r})")


class TopicError(TidingsError):
    """A topic or topic pattern that is not well formed."""


class AttributeValueError(TidingsError):
    """An attribute whose name or value cannot be carried."""


class WireError(TidingsError):
    """Bytes from a peer that are no message of this protocol, or exceed a limit."""


class ScenarioError(TidingsError):
    """A scenario or topology file that cannot be used; the message names the key."""


class NotYetAvailable(ScenarioError):  # noqa: N818 - it is a statement, not a failure
    """Something that the file format knows and this version does not run."""


class TraceError(TidingsError):
    """Trace tables that are missing, unreadable or of another shape."""


class ConnectionFailed(TidingsError):  # noqa: N818
    """A broker that cannot be reached, refused us, or went away."""


class AddressError(ConnectionFailed):
    """A URL or an address that is not well formed: a mistake in what was given, whoever may listen there."""


class BrokerAway(ConnectionFailed):
    """Nobody answers there now: that may change, unlike a refusal."""


class NotConfirmed(TidingsError):  # noqa: N818
    """A publication whose broker went away before it confirmed: it may or may not have been taken."""


class SubscriptionRefused(TidingsError):  # noqa: N818
    """A subscription that the broker did not accept."""


class StoreError(TidingsError):
    """What a broker keeps on disk cannot be opened, read or written; the message names the file."""


class StoreFull(StoreError):  # noqa: N818
    """There is no room for a write. Nothing of it was kept, and the store goes on once there is room."""


class StoreCorrupt(StoreError):  # noqa: N818
    """A file that is no store of ours, or is damaged; the message says how to recover."""


class OrderError(TidingsError):
    """Topics, sequencers or timestamps that do not fit together, or an order that cannot be had here."""


class ArchiveError(TidingsError):
    """An archive that cannot be opened, read or written; the message names the file or the offset."""


class ArchiveTrimmed(ArchiveError):  # noqa: N818
    """Offsets that the archive had and does not keep any more."""


class ArchiveAhead(ArchiveError):  # noqa: N818
    """Offsets that the archive does not have yet."""


class ArchiveCorrupt(ArchiveError):  # noqa: N818
    """A file of an archive that is missing, torn or damaged; the message names it and the offsets it held."""


class ArchiveFull(ArchiveError):  # noqa: N818
    """There is no room for a write. Nothing of it was kept, and the archive goes on once there is room."""


class MissingExtra(TidingsError, ImportError):  # noqa: N818
    """A part of tidings whose libraries are not installed; the message says how to install them."""


class PipelineError(TidingsError):
    """A job that cannot run on Spark as it was asked for: an option, a column, a master, or no Java."""
