"""The options of `format("tidings")` as a source, named as in Spark's Kafka source where it has the same.

All options are checked here, on the driver, before anything is opened: no worker fails because of a user's mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from tidings.core.errors import PipelineError, TidingsError
from tidings.core.events.event import INT_MAX
from tidings.core.events.topics import TopicPattern, canonical_topics, check_topic
from tidings.drivers.address import Address, parse_address

EARLIEST, LATEST = -2, -1
"""The numbers that Kafka uses for an archive's first and next offset."""
NANOSECONDS_PER_MS = 1_000_000
LAST_MS = INT_MAX // NANOSECONDS_PER_MS
"""In the year 2262: events cannot carry a later time."""
SHOWN_CHARACTERS = 80
MAX_PARTITIONS = 100_000
DEFAULT_TIMEOUT_S = 30.0
MAX_TIMEOUT_S = 24 * 3_600.0

KNOWN = (
    *("archive", "path", "url", "token", "tlsCa", "timeout", "subscribe", "subscribePattern", "where"),
    *("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"),
    *("includeHeaders", "failOnDataLoss", "minPartitions", "maxOffsetsPerTrigger", "consumer", "durable"),
)
BATCH_ONLY = ("endingOffsets", "endingTimestamp")
STREAM_ONLY = ("maxOffsetsPerTrigger", "consumer")
NOT_DURABLE = (
    *("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp"),
    *("failOnDataLoss", "consumer"),
)
"""Options of archives."""
SCHEMES = ("tidings", "tidings+tls")
DURABLE_NAME = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_NEXT_URL = re.compile(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)")

Offsets = int | Mapping[str, int]
"""One offset for the only archive (or EARLIEST or LATEST for all), or one per archive, by its id."""


@dataclass(frozen=True)
class Location:
    """The location of an archive: its directory, or the broker that keeps it. `index` is the column `partition`."""

    index: int
    text: str
    remote: bool = False
    token: str = ""
    tls_ca: str | None = None

    def __repr__(self) -> str:
        return f"Location({self.text!r})"  # without the token


@dataclass(frozen=True)
class SourceOptions:
    locations: tuple[Location, ...]
    topics: tuple[TopicPattern, ...] | None
    """None: all topics."""
    where: str | None
    start: Offsets | None
    """None: earliest for a batch, latest for a stream."""
    start_ns: int | None
    end: Offsets
    end_ns: int | None
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_offsets_per_trigger: int | None
    consumer: str | None
    durable: str | None
    """The durable subscription that is read instead of an archive."""
    timeout_s: float
    """How long to wait for a broker that is unreachable."""


def parse_options(options: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Parse the options. Raises a one-line PipelineError for the first mistake. `streaming` is None while it is
    unknown."""
    given = _known(options)
    _check_use(given, streaming)
    _check_durable(given, streaming)
    locations = _locations(given) if "durable" not in given else (_broker(given),)
    _one_of(given, "startingOffsets", "startingTimestamp")
    _one_of(given, "endingOffsets", "endingTimestamp")
    start_ns, end_ns = _instant_ns(given, "startingTimestamp"), _instant_ns(given, "endingTimestamp")
    if start_ns is not None and end_ns is not None and end_ns < start_ns:
        raise PipelineError("option endingTimestamp is before startingTimestamp")
    return SourceOptions(
        locations=locations,
        topics=_topics(given),
        where=_where(given.get("where")),
        start=_offsets(given, "startingOffsets", len(locations)),
        start_ns=start_ns,
        end=_ending_offsets(given, len(locations)),
        end_ns=end_ns,
        include_headers=_flag(given, "includeHeaders", default=False),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        min_partitions=_count(given, "minPartitions", MAX_PARTITIONS),
        max_offsets_per_trigger=_count(given, "maxOffsetsPerTrigger"),
        consumer=_consumer(given),
        durable=given.get("durable"),
        timeout_s=parse_timeout(given.get("timeout")),
    )


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under our spelling: Spark passes names in lower case, and case does not matter."""
    spelling = {name.lower(): name for name in KNOWN}
    given: dict[str, str] = {}
    for key, value in options.items():
        name = spelling.get(key.lower())
        if name is None:
            near = get_close_matches(key.lower(), spelling, n=1)
            hint = f"did you mean {spelling[near[0]]}?" if near else f"known options: {', '.join(KNOWN)}"
            raise PipelineError(f"unknown option {_shown(key)}: {hint}")
        given[name] = value.strip()
    return given


def _check_use(given: Mapping[str, str], streaming: bool | None) -> None:
    for name in BATCH_ONLY if streaming else ():
        if name in given:
            raise PipelineError(f"option {name} is only for batch reads: a stream has no end")
    for name in STREAM_ONLY if streaming is False else ():
        if name in given:
            raise PipelineError(f"option {name} is only for streams: use spark.readStream")


def _check_durable(given: Mapping[str, str], streaming: bool | None) -> None:
    name = given.get("durable")
    if name is None:
        return
    check_durable_name(name)
    for directory in ("archive", "path"):
        if directory in given:
            raise PipelineError(
                f"options {directory} and durable exclude each other: read an archive, or a durable subscription at url"
            )
    for option in NOT_DURABLE:
        if option in given:
            raise PipelineError(
                f"option {option} is for archives: a durable subscription goes on where the last reader stopped"
            )
    if streaming is False:
        raise PipelineError(
            "option durable is only for streams, because a batch read never says when its rows are done: "
            "use spark.readStream with trigger(availableNow=True)"
        )


def check_durable_name(name: str) -> None:
    if re.fullmatch(DURABLE_NAME, name) is None:
        raise PipelineError(
            f"option durable {_shown(name)} must have 1 to 64 letters, digits, '.', '_' or '-', "
            "and start with a letter or a digit"
        )


def _broker(given: Mapping[str, str]) -> Location:
    """Return where the network is: the first broker of several that answers."""
    if "url" not in given:
        raise PipelineError("option durable needs url: the address of a broker, such as tidings://host:port")
    token, tls_ca = given.get("token", ""), given.get("tlsCa") or None
    broker_addresses(given["url"])
    return Location(0, given["url"], True, token, tls_ca)


def broker_addresses(url: str) -> list[tuple[Address, bool]]:
    """Return the brokers of a URL, and whether each one speaks TLS: tidings://HOST:PORT[,HOST:PORT...]."""
    found: list[tuple[Address, bool]] = []
    for place in _NEXT_URL.split(url):
        scheme, separator, rest = place.strip().partition("://")
        if not separator or scheme not in SCHEMES:
            raise PipelineError(f"option url: {_shown(place)} must start with tidings:// or tidings+tls://")
        try:
            addresses = [parse_address(text.strip()) for text in rest.rstrip("/").split(",")]
        except TidingsError as error:
            raise PipelineError(f"option url: {error}") from None
        found += [(address, scheme != "tidings") for address in addresses]
    return found


def _one_of(given: Mapping[str, str], *names: str) -> str | None:
    found = [name for name in names if name in given]
    if len(found) > 1:
        raise PipelineError(f"options {found[0]} and {found[1]} exclude each other: set only one of them")
    return found[0] if found else None


def _locations(given: Mapping[str, str]) -> tuple[Location, ...]:
    name = _one_of(given, "archive", "path", "url")
    if name is None:
        raise PipelineError("missing option: set archive (a directory) or url (tidings://host:port)")
    remote = name == "url"
    for only_remote in ("token", "tlsCa", "timeout"):
        if only_remote in given and not remote:
            raise PipelineError(f"option {only_remote} is only for url, not for an archive's directory")
    places = [part.strip() for part in (_NEXT_URL.split(given[name]) if remote else given[name].split(","))]
    for place in places:
        if not place:
            raise PipelineError(f"option {name} {_shown(given[name])} has an empty element")
        if places.count(place) > 1:
            raise PipelineError(f"option {name} names {_shown(place)} twice")
        if remote:
            _check_url(place)
    token, tls_ca = given.get("token", ""), given.get("tlsCa") or None
    return tuple(Location(index, place, remote, token, tls_ca) for index, place in enumerate(places))


def _check_url(url: str) -> None:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise PipelineError(f"option url: {_shown(url)} must start with tidings:// or tidings+tls://")
    if "," in rest:
        raise PipelineError(
            f"option url: {_shown(url)} has several addresses: write the url of each archive in full"
        )
    try:
        parse_address(rest.rstrip("/"))
    except TidingsError as error:
        raise PipelineError(f"option url: {error}") from None


def _topics(given: Mapping[str, str]) -> tuple[TopicPattern, ...] | None:
    name = _one_of(given, "subscribe", "subscribePattern")
    if name is None:
        return None
    texts = [text.strip() for text in given[name].split(",")]
    plain = name == "subscribe" and "durable" not in given  # there it is what bus.subscribe takes
    try:
        return canonical_topics(check_topic(text) if plain else text for text in texts)
    except TidingsError as error:
        raise PipelineError(f"option {name}: {error}") from None


def _where(sql: str | None) -> str | None:
    if sql is None:
        return None
    from tidings.core.filters.language.filter import Filter

    try:
        Filter(sql)
    except TidingsError as error:
        raise PipelineError(f"option where: {error}") from None
    return sql


def _offsets(given: Mapping[str, str], name: str, archives: int) -> Offsets | None:
    text = given.get(name)
    if text is None:
        return None
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return words[text.lower()]
    if _is_digits(text):
        if archives > 1:
            raise PipelineError(
                f"option {name} is one number for {archives} archives: write one per archive, "
                'as {"<archive id>": <offset>, ...}'
            )
        return int(text)
    return _offsets_by_archive(name, text)


def _offsets_by_archive(name: str, text: str) -> dict[str, int]:
    malformed = PipelineError(
        f"option {name} {_shown(text)} is malformed: expected earliest, latest, a number, "
        'or JSON such as {"<archive id>": <offset>}'
    )
    try:
        parsed = json.loads(text, object_pairs_hook=_pairs)
    except (ValueError, RecursionError):
        raise malformed from None
    if not isinstance(parsed, dict) or not parsed:
        raise malformed
    for archive, offset in parsed.items():
        if type(offset) is not int or not EARLIEST <= offset <= INT_MAX:
            raise PipelineError(
                f"option {name}: {_shown(json.dumps(offset, default=str))} for archive {_shown(archive)} is not an "
                "offset: expected a number from 0, -2 for earliest or -1 for latest"
            )
    return parsed


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate key")
    return found


def _ending_offsets(given: Mapping[str, str], archives: int) -> Offsets:
    end = _offsets(given, "endingOffsets", archives)
    if end is None:
        return LATEST
    if end == EARLIEST or (isinstance(end, Mapping) and EARLIEST in end.values()):
        raise PipelineError("option endingOffsets cannot be earliest: expected latest, a number, or JSON")
    return end


def _instant_ns(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise PipelineError(f"option {name} {_shown(text)} is not a time: expected milliseconds since 1970")
    if not _is_digits(text) or int(text) > LAST_MS:
        raise PipelineError(
            f"option {name} {_shown(text)} is too large: expected milliseconds since 1970, at most {LAST_MS} "
            "(in the year 2262)"
        )
    return int(text) * NANOSECONDS_PER_MS


def _count(given: Mapping[str, str], name: str, most: int = INT_MAX) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not _is_digits(text) or not 1 <= int(text) <= most:
        raise PipelineError(f"option {name} {_shown(text)} must be a number from 1 to {most}")
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise PipelineError(f"option {name} {_shown(text)} must be true or false")
    return text.lower() == "true"


def parse_timeout(text: str | None) -> float:
    """Parse how long the source and the sink wait for a broker that is unreachable."""
    if text is None:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_TIMEOUT_S:
        raise PipelineError(
            f"option timeout {_shown(text)} must be a number of seconds above 0, and at most a day (86400)"
        )
    return seconds


def _consumer(given: Mapping[str, str]) -> str | None:
    consumer = given.get("consumer")
    if consumer is not None and not (consumer and consumer.isprintable()):
        raise PipelineError(f"option consumer {_shown(consumer)} must be a name of printable characters")
    return consumer


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def _shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...")
