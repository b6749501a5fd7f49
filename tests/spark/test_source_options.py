"""Options of the source: what is wrong is named in one line, before anything is opened."""

from __future__ import annotations

import pytest

from tidings.core.errors import PipelineError
from tidings.spark.format.options import EARLIEST, KNOWN, LATEST, broker_addresses, parse_options

A = {"archive": "/a"}
D = {"url": "tidings://h:1", "durable": "lake"}


def test_names_mean_the_same_in_any_case() -> None:
    for change in (str, str.lower, str.upper):
        given = {change(name): value for name, value in (*A.items(), ("failOnDataLoss", "FALSE"))}
        assert parse_options(given).fail_on_data_loss is False


def test_defaults() -> None:
    options = parse_options(A)
    assert [location.text for location in options.locations] == ["/a"]
    assert (options.start, options.end, options.topics, options.where) == (None, LATEST, None, None)
    assert options.fail_on_data_loss
    assert options.timeout_s == 30
    assert options.max_offsets_per_trigger is options.min_partitions is options.consumer is None


def test_several_archives_and_urls() -> None:
    assert [one.index for one in parse_options({"archive": "/a, /b ,/c"}).locations] == [0, 1, 2]
    urls = parse_options(
        {"url": "tidings://h:1,tidings+tls://[::1]:2, tidings://h:3", "token": "t"}
    ).locations
    assert [one.text for one in urls] == ["tidings://h:1", "tidings+tls://[::1]:2", "tidings://h:3"]
    assert all(one.remote and one.token == "t" for one in urls)
    assert "t'" not in repr(urls[2]).replace("tidings", "")  # a token is not shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", EARLIEST),
        ("LATEST", LATEST),
        (" 12 ", 12),
        ('{"abc": 3}', {"abc": 3}),
        ('{"abc": -1, "def": -2}', {"abc": LATEST, "def": EARLIEST}),
    ],
)
def test_starting_offsets(text: str, expected: object) -> None:
    assert parse_options({**A, "startingOffsets": text}).start == expected


MISTAKES = [
    ({}, "archive"),
    ({"archive": "/a", "url": "tidings://h:1"}, "exclude each other"),
    ({"archive": "/a,,/b"}, "empty element"),
    ({"archive": "/a,/a"}, "twice"),
    ({"archive": "/a", "token": "t"}, "token is only for url"),
    ({"archive": "/a", "timeout": "3"}, "timeout is only for url"),
    (
        {"url": "tidings://h:1", "timeout": "soon"},
        "option timeout 'soon' must be a number of seconds above 0",
    ),
    ({"url": "tidings://h:1", "timeout": "0"}, "option timeout '0' must be a number of seconds above 0"),
    ({"url": "kafka://h:1"}, "'kafka://h:1' must start with tidings://"),
    ({"url": "tidings://h:port"}, "the port must be a number"),
    ({**A, "startingOfsets": "1"}, "unknown option 'startingOfsets': did you mean startingOffsets?"),
    ({**A, "STARTINGOFSETS": "1"}, "did you mean startingOffsets?"),
    ({**A, "colour": "red"}, "unknown option 'colour': known options: archive"),
    ({**A, "subscribe": "/a/*"}, "option subscribe: topic '/a/*' has a wildcard"),
    ({**A, "subscribe": "a"}, "option subscribe: topic 'a' must start"),
    ({**A, "subscribePattern": "/a*"}, "option subscribePattern: topic pattern '/a*'"),
    ({**A, "subscribe": "/a", "subscribePattern": "/a"}, "exclude each other"),
    ({**A, "where": "size >"}, "option where: "),
    ({**A, "startingOffsets": "soon"}, "option startingOffsets 'soon' is malformed"),
    ({**A, "startingOffsets": "-3"}, "malformed"),
    ({**A, "startingOffsets": "[1]"}, "malformed"),
    ({**A, "startingOffsets": "{}"}, "malformed"),
    ({**A, "startingOffsets": '{"a": 1, "a": 2}'}, "malformed"),
    ({**A, "startingOffsets": "[" * 100_000}, "malformed"),
    ({**A, "startingOffsets": "9" * 5_000}, "malformed"),
    ({**A, "startingOffsets": '{"a": "1"}'}, "'\"1\"' for archive 'a' is not an offset"),
    ({**A, "startingOffsets": '{"a": true}'}, "is not an offset"),
    ({**A, "startingOffsets": '{"a": 1.0}'}, "is not an offset"),
    ({**A, "startingOffsets": '{"a": -3}'}, "is not an offset"),
    ({"archive": "/a,/b", "startingOffsets": "3"}, "one number for 2 archives"),
    ({**A, "endingOffsets": "earliest"}, "cannot be earliest"),
    ({**A, "endingOffsets": '{"a": -2}'}, "cannot be earliest"),
    ({**A, "startingOffsets": "1", "startingTimestamp": "1"}, "exclude each other"),
    ({**A, "startingTimestamp": "yesterday"}, "milliseconds since 1970"),
    (
        {**A, "startingTimestamp": "99999999999999"},
        "'99999999999999' is too large: expected milliseconds since 1970, at most 9223372036854 (in the year 2262)",
    ),
    ({**A, "endingTimestamp": "9" * 30}, "at most 9223372036854"),
    ({**A, "startingTimestamp": "5", "endingTimestamp": "4"}, "before startingTimestamp"),
    ({**A, "failOnDataLoss": "maybe"}, "must be true or false"),
    ({**A, "minPartitions": "0"}, "option minPartitions '0' must be a number from 1"),
    ({**A, "minPartitions": "1000000000"}, "to 100000"),
    ({**A, "maxOffsetsPerTrigger": "-1"}, "must be a number from 1"),
    ({**A, "consumer": " "}, "must be a name"),
    ({**A, "durable": "lake"}, "options archive and durable exclude each other"),
    ({"durable": "lake"}, "option durable needs url"),
    ({**D, "durable": "-lake"}, "option durable '-lake' must have 1 to 64 letters, digits"),
    ({**D, "url": "nats://h:1"}, "must start with tidings://"),
    ({**D, "url": "tidings://h:1,h:port"}, "the port must be a number"),
    (
        {**D, "startingOffsets": "latest"},
        "option startingOffsets is for archives: a durable subscription goes on",
    ),
    ({**D, "failOnDataLoss": "false"}, "option failOnDataLoss is for archives"),
    ({**D, "consumer": "c"}, "option consumer is for archives"),
    ({**D, "subscribe": "/a*"}, "option subscribe: topic pattern '/a*'"),
    ({**D, "durabel": "x"}, "did you mean durable?"),
]


@pytest.mark.parametrize(("options", "words"), MISTAKES)
def test_a_mistake_is_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(PipelineError) as caught:
        parse_options(options)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 400


def test_the_last_instant_there_is() -> None:
    assert parse_options({**A, "startingTimestamp": "9223372036854"}).start_ns == 9223372036854 * 10**6


def test_options_of_the_other_kind_of_read() -> None:
    for name in ("endingOffsets", "endingTimestamp"):
        with pytest.raises(PipelineError, match=f"option {name} is only for batch reads"):
            parse_options({**A, name: "1"}, streaming=True)
    for name in ("maxOffsetsPerTrigger", "consumer"):
        with pytest.raises(PipelineError, match=f"option {name} is only for streams"):
            parse_options({**A, name: "1"}, streaming=False)


def test_a_durable_subscription_is_read_as_a_stream() -> None:
    given = {**D, "url": "tidings://h:1,g:2,tidings+tls://f:3", "subscribe": "/a/*, /b"}
    parsed = parse_options(given, streaming=True)
    assert parsed.durable == "lake" and [topic.text for topic in parsed.topics or ()] == ["/a/*", "/b"]
    places = [(str(address), encrypted) for address, encrypted in broker_addresses(parsed.locations[0].text)]
    assert places == [("h:1", False), ("g:2", False), ("f:3", True)]
    with pytest.raises(
        PipelineError, match=r"^option durable is only for streams, because a batch read never"
    ):
        parse_options(given, streaming=False)


def test_every_known_option_is_read() -> None:
    """What is known and ignored would be a mistake that nobody is told."""
    values = {
        "archive": "/a",
        "path": "/a",
        "url": "tidings://h:1",
        "token": "t",
        "tlsCa": "/ca",
        "timeout": "2.5",
        "subscribe": "/t",
        "subscribePattern": "/t/**",
        "where": "size > 1",
        "includeHeaders": "true",
        "failOnDataLoss": "false",
        "startingOffsets": "1",
        "startingTimestamp": "1",
        "endingOffsets": "1",
        "endingTimestamp": "1",
        "minPartitions": "2",
        "maxOffsetsPerTrigger": "2",
        "consumer": "c",
        "durable": "lake",
    }
    assert set(values) == set(KNOWN)
    of_urls = ("token", "tlsCa", "timeout", "durable")
    for name, value in values.items():
        base = {"url": "tidings://x:1"} if name in of_urls else {"archive": "/z"}
        given = {name: value} if name in ("archive", "path", "url") else {**base, name: value}
        assert parse_options(given) != parse_options(base)
