"""The errors that tidings raises for a mistake of its user or of a peer. Every message says what is wrong and where."""


class TidingsError(Exception):
    """Base of all errors that tidings raises on purpose."""


class FilterError(TidingsError):
    """A filter is invalid. `position` counts characters from 0; None if the error has no position."""

    def __init__(self, message: str, *, sql: str = "", position: int | None = None) -> None:
        self.sql = sql
        self.position = position
        super().__init__(message if position is None else f"{message} (at position {position} of {sql!r})")


class TopicError(TidingsError):
    """A topic or topic pattern is not well formed."""


class AttributeValueError(TidingsError):
    """An attribute has a name or a value that events cannot carry."""


class PayloadError(TidingsError):
    """A payload cannot be encoded, or an event's payload is not what the application asked for."""


class WireError(TidingsError):
    """A peer sent bytes that are not a message of this protocol, or that exceed a limit."""


class ScenarioError(TidingsError):
    """A scenario or topology file is invalid; the message names the key."""


class NotYetAvailable(ScenarioError):  # noqa: N818 - it is a statement, not a failure
    """The file format allows this, but this version cannot run it."""


class TraceError(TidingsError):
    """Trace tables are missing, unreadable or have the wrong columns."""


class ConnectionFailed(TidingsError):  # noqa: N818
    """A broker cannot be reached, rejected the connection, or closed it."""


class AddressError(ConnectionFailed):
    """A URL or an address is not well formed: retrying cannot help."""


class BrokerAway(ConnectionFailed):
    """Nobody answers at the address now. Unlike a rejection, that may change."""


class NotConfirmed(TidingsError):  # noqa: N818
    """The broker went away before it confirmed a publication, which it may or may not have taken."""


class SubscriptionRefused(TidingsError):  # noqa: N818
    """The broker rejected a subscription."""


class NotHeld(TidingsError):  # noqa: N818
    """An event can no longer be acknowledged: it already was, or another holder has it now."""


class DeliveriesExhausted(TidingsError):  # noqa: N818
    """An event of an ordered durable subscription was delivered as often as allowed and never acknowledged."""


class NoResponder(TidingsError):  # noqa: N818
    """Nobody is subscribed to a request."""


class RequestFailed(TidingsError):  # noqa: N818
    """Whoever handled a request failed; the message is the text of its exception."""


class StoreError(TidingsError):
    """A broker's store cannot be opened, read or written; the message names the file."""


class StoreFull(StoreError):  # noqa: N818
    """A write found no room. None of it was kept, and the store works again once there is room."""


class StoreCorrupt(StoreError):  # noqa: N818
    """A file is damaged, or is not a broker's store; the message says how to recover."""


class OrderError(TidingsError):
    """Topics, sequencers or timestamps do not fit together, or an order is not available here."""


class ArchiveError(TidingsError):
    """An archive cannot be opened, read or written; the message names the file or the offset."""


class ArchiveTrimmed(ArchiveError):  # noqa: N818
    """The archive no longer has these offsets."""


class ArchiveAhead(ArchiveError):  # noqa: N818
    """The archive does not have these offsets yet."""


class ArchiveCorrupt(ArchiveError):  # noqa: N818
    """A file of an archive is missing, torn or damaged; the message names it and the offsets it held."""


class ArchiveFull(ArchiveError):  # noqa: N818
    """A write found no room. None of it was kept, and the archive works again once there is room."""


class MissingExtra(TidingsError, ImportError):  # noqa: N818
    """A part of tidings needs libraries that are not installed; the message says how to install them."""


class PipelineError(TidingsError):
    """A job cannot run on Spark as requested: an option, a column or a master is wrong, or Java is missing."""
