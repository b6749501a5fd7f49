"""`pub --json-lines` publishes what `sub --json` prints; bad lines are told by their numbers."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_thread import BrokerThread
from command import process_of_tidings, tidings
from tidings.cli.shared import json_lines
from tidings.cli.shared.event_printer import PayloadForm, Printer
from tidings.cli.shared.json_lines import parse_line
from tidings.core.events.event import Event, give_payload
from tidings.core.events.payload import TypedPayload
from tidings.drivers.processes.stdin import lines_of

NOWHERE = "tidings://127.0.0.1:9"
GOOD = b'{"topic": "/a", "payload": "x"}'


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as started:
        yield started


@pytest.fixture
def new(broker: BrokerThread) -> BrokerThread:
    """A broker that nothing was published at."""
    broker.settled()
    broker.events.clear()
    return broker


def lines_file(tmp_path: Path, *lines: bytes) -> Path:
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines))
    return path


# --- One line


ATTRIBUTES = st.dictionaries(
    st.text(min_size=1, max_size=9).filter(
        lambda name: name != "topic" and not name.startswith("~") and max(name) < "\ud800"
    ),
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.text(st.characters(exclude_categories=["Cs"])),
        st.binary(),
        st.none(),
    ),
    max_size=5,
)


@given(ATTRIBUTES, st.binary(), st.sampled_from([PayloadForm.TEXT, PayloadForm.HEX]))
def test_what_is_printed_is_read_back(
    attributes: dict[str, object], payload: bytes, form: PayloadForm
) -> None:
    event = Event("p", 0, 1, "/a/b", 5, attributes, payload)  # type: ignore[arg-type]
    line = json.dumps(Printer(form, as_json=True).fields(event), ensure_ascii=False)
    topic, found, content = parse_line(line.encode())
    assert (topic, found, content) == ("/a/b", attributes, payload)
    assert [type(value) for value in found.values()] == [type(value) for value in attributes.values()]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{", "not valid JSON"),
        (b"hello", "not valid JSON"),
        (b'{"topic": "/a"} {"topic": "/b"}', "not valid JSON"),
        (b'{"topic": "/a\xff"}', "not valid JSON"),
        (b'{"topic": "/a", "attributes": {"x": NaN}}', "not valid JSON"),
        (b"[]", "expected an object, got an array"),
        (b"null", "expected an object, got null"),
        (b"{}", "has no topic"),
        (b'{"topic": 3}', "topic: expected text, got a whole number"),
        (b'{"topic": "a"}', "must start with '/'"),
        (b'{"topic": "/a/*"}', "wildcard"),
        (b'{"topic": "/a", "attributes": []}', "attributes: expected an object, got an array"),
        (b'{"topic": "/a", "attributes": {"x": [1]}}', "attribute 'x': expected text, a number"),
        (b'{"topic": "/a", "attributes": {"x": {"hex": "0"}}}', "attribute 'x'"),
        (b'{"topic": "/a", "attributes": {"x": {"hex": "00", "y": 1}}}', "attribute 'x'"),
        (b'{"topic": "/a", "attributes": {"x": {"float": "1.5"}}}', "attribute 'x'"),
        (b'{"topic": "/a", "attributes": {"topic": "/b"}}', "reserved"),
        (b'{"topic": "/a", "attributes": {"x": 9223372036854775808}}', "64 bits"),
        (b'{"topic": "/a", "payload": 3}', "payload: expected text or null, got a whole number"),
        (b'{"topic": "/a", "payload": "x", "payload_hex": "78"}', "both payload and payload_hex"),
        (b'{"topic": "/a", "paylod": "x"}', "unknown key 'paylod'; did you mean 'payload'?"),
        (b'{"topic": "/a", "expire": 1}', "unknown key 'expire'; did you mean 'expires_at'?"),
        (
            b'{"topic": "/a", "zzz": 1}',
            "unknown key 'zzz'; known ones: attributes, content_type, expires_at, payload, payload_hex, topic",
        ),
        (b'{"topic": "/a", "expires_at": "2h"}', "expires_at: expected a whole number or null, got text"),
        (b'{"topic": "/a", "expires_at": 0}', "expires_at: expected a whole number >= 1"),
        (b'{"topic": "/a", "payload_hex": "7"}', "payload_hex: expected hexadecimal digits"),
        (b'{"topic": "/a", "payload": "' + b"x" * 2**20 + b'"}', "at most 1048576 are allowed"),
        (b"x" * (json_lines.MAX_LINE_BYTES + 1), "longer than"),
        (b'{"topic": "/a", "attributes": {"x": "\\ud800"}}', "valid"),
    ],
    ids=lambda value: value[:40].decode(errors="replace") if isinstance(value, bytes) else "",
)
def test_a_bad_line(line: bytes, told: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_line(line)
    assert told in str(error.value)


def test_every_key_that_is_printed_is_taken() -> None:
    event = Event("p", 0, 1, "/a", 5, {"x": 1}, b"{}")
    give_payload(event, TypedPayload(b"{}", "application/json", 7))
    event.__dict__.update(out_of_order=True, recovered_by="gossip", held=SimpleNamespace(attempt=2))
    for form in PayloadForm:
        fields = {"offset": 3, **Printer(form, as_json=True).fields(event)}
        assert {*fields} >= {"id", "out_of_order", "recovered_by", "attempt", "expires_at", "content_type"}
        _, _, payload = parse_line(json.dumps(fields).encode())
        assert isinstance(payload, TypedPayload)
        assert (payload.expires_at, payload.content_type) == (7, "application/json")
    letter = {"event": "p:1", "subscription": "s", "deliveries": 3, "reason": "r", "given_up_at": 1}
    assert parse_line(json.dumps({"topic": "/a", **letter}).encode())[0] == "/a"


# --- Many lines


def test_an_expiry_is_kept_and_what_expired_is_left_out(new: BrokerThread, tmp_path: Path) -> None:
    later = time.time_ns() + 3_600 * 10**9
    lines = [b'{"topic": "/a", "expires_at": %d}' % at for at in (later, 5)]
    path = lines_file(tmp_path, *lines, GOOD)
    done = tidings("pub", new.url, "--json-lines", "--file", path)
    told = "tidings: 1 of 3 lines had expired and were left out\n"
    assert (done.returncode, len(done.stdout.splitlines()), done.stderr) == (0, 2, told)
    assert [event.expires_at for event in new.settled()] == [later, None]
    new.events.clear()
    done = tidings("pub", new.url, "--json-lines", "--file", path, "--expires", "1h", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = [event.expires_at for event in new.settled()]
    assert len(found) == 3 and all(at is not None and at > later for at in found)


def test_lines_are_published_in_their_order(new: BrokerThread, tmp_path: Path) -> None:
    binary = b'{"id": "old:1", "topic": "/b", "attributes": {"x": {"hex": "00ff"}}, "payload_hex": "ff"}'
    path = lines_file(tmp_path, GOOD, b"", binary + b"\r", b'{"topic": "/c"}')
    done = tidings("pub", new.url, "--json-lines", "--file", path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["topic"] for line in done.stdout.splitlines()] == ["/a", "/b", "/c"]
    found = [(event.topic, dict(event.attributes), event.payload) for event in new.settled()]
    assert found == [("/a", {}, b"x"), ("/b", {"x": b"\x00\xff"}, b"\xff"), ("/c", {}, b"")]


def test_bad_lines_are_told_by_number_and_the_others_published(new: BrokerThread, tmp_path: Path) -> None:
    path = lines_file(tmp_path, GOOD, b"oops", b"", b'{"topic": "b"}', GOOD)
    done = tidings("pub", new.url, "--json-lines", "--file", path)
    assert done.returncode == 2
    told = done.stderr.splitlines()
    assert told[0] == "tidings: line 2: not valid JSON"
    assert told[1].startswith("tidings: line 4: topic 'b' must start with '/'")
    assert told[2:] == ["tidings: 2 of 4 lines are bad; the others were published"]
    assert len(done.stdout.splitlines()) == len(new.settled()) == 2
    done = tidings("pub", new.url, "--json-lines", "--file", lines_file(tmp_path, b"oops"))
    assert done.stderr.splitlines()[-1] == "tidings: 1 of 1 lines are bad; nothing was published"


def test_all_or_nothing(new: BrokerThread, tmp_path: Path) -> None:
    path = lines_file(tmp_path, GOOD, b"oops", GOOD)
    done = tidings("pub", new.url, "--json-lines", "--all-or-nothing", "--file", path, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert [json.loads(line) for line in done.stderr.splitlines()] == [
        {"notice": "line 2: not valid JSON"},
        {"error": "1 of 3 lines are bad; nothing was published"},
    ]
    assert new.settled() == []
    done = tidings(
        "pub", new.url, "--json-lines", "--all-or-nothing", "--file", lines_file(tmp_path, GOOD, GOOD)
    )
    assert done.returncode == 0
    assert len(new.settled()) == 2


@pytest.mark.parametrize("limit", ["MAX_LINES", "MAX_BYTES"])
def test_all_or_nothing_has_a_limit(
    new: BrokerThread, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_lines, limit, 2)
    path = lines_file(tmp_path, GOOD, GOOD, GOOD)
    done = tidings("pub", new.url, "--json-lines", "--all-or-nothing", "--file", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--all-or-nothing: more than " in done.stderr and "in parts" in done.stderr
    assert new.settled() == []


def test_count_and_rate_apply_to_lines(new: BrokerThread, tmp_path: Path) -> None:
    path = lines_file(tmp_path, *[GOOD] * 9)
    done = tidings("pub", new.url, "--json-lines", "--file", path, "--count", 3, "--rate", 1000)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3)
    assert len(new.settled()) == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["/a", "--json-lines"], "TOPIC: not allowed with --json-lines"),
        (["events.jsonl", "--json-lines"], "name their file with --file"),
        (["--json-lines", "-a", "x=1"], "--attribute: not allowed with --json-lines"),
        (["/a", "x", "--all-or-nothing"], "--all-or-nothing: requires --json-lines"),
        (["--json-lines", "--file", "/no/such"], "--file: cannot read /no/such: no such file"),
        (["--json-lines", "--file", "/"], "is a directory"),
        ([], "missing argument 'TOPIC'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_do_not_fit(broker: BrokerThread, arguments: list[str], told: str) -> None:
    done = tidings("pub", broker.url, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert told in done.stderr


def test_nobody_there(tmp_path: Path) -> None:
    done = tidings("pub", NOWHERE, "--json-lines", "--file", lines_file(tmp_path, GOOD))
    assert (done.returncode, done.stderr) == (4, f"tidings: cannot reach {NOWHERE}: connection refused\n")


@pytest.mark.processes
def test_lines_from_stdin_are_published(new: BrokerThread) -> None:
    done = process_of_tidings("pub", new.url, "--json-lines", given=f"{GOOD.decode()}\nbad\n{GOOD.decode()}")
    assert done.returncode == 2
    assert "line 2: not valid JSON" in done.stderr
    assert len(new.settled()) == 2


# --- Reading


def read_all(content: bytes, limit: int, *, by: int | None = None) -> list[bytes]:
    """All lines of a pipe that `by` bytes at a time are written to."""

    async def read() -> list[bytes]:
        reading, writing = os.pipe()

        async def write() -> None:
            step = by or len(content) or 1
            for begin in range(0, len(content), step):
                os.write(writing, content[begin : begin + step])
                await asyncio.sleep(0.001)
            os.close(writing)

        task = asyncio.create_task(write())
        try:
            found = [line async for several in lines_of(reading, limit) for line in several]
            await task
            return found
        finally:
            os.close(reading)

    return asyncio.run(read())


def test_a_line_that_is_too_long_is_one_line() -> None:
    content = b"a\n" + b"b" * 50 + b"\nc\r\nd"
    found = read_all(content, 10, by=8)
    assert found[0] == b"a" and found[2:] == [b"c", b"d"]
    assert len(found[1]) > 10 and set(found[1]) == {ord("b")}
    assert read_all(b"x" * 40, 10, by=8)[1:] == []


def test_lines_arrive_before_the_end() -> None:
    async def read() -> None:
        reading, writing = os.pipe()
        try:
            lines = lines_of(reading)
            os.write(writing, b"one\ntw")
            assert await anext(lines) == [b"one"]
            os.write(writing, b"o\n")
            assert await anext(lines) == [b"two"]
        finally:
            os.close(writing)
            with pytest.raises(StopAsyncIteration):
                await anext(lines)
            os.close(reading)

    asyncio.run(read())
