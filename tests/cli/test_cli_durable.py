"""Durable subscriptions and groups on the command line, at a live broker in a thread of this process."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import tidings as api
from broker_thread import BrokerThread
from command import tidings
from tidings.bus.bus import Bus
from tidings.cli.shared.durable_rows import duration_text, print_durable
from tidings.cli.shared.event_printer import Printer

NOWHERE = "tidings://127.0.0.1:9"
NUMBERS = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as started:
        yield started


@pytest.fixture
def name() -> str:
    """Of a durable subscription that no other test has, and of its topic."""
    return f"billing{next(NUMBERS)}"


def publish(broker: BrokerThread, topic: str, *payloads: bytes, **attributes: Any) -> None:
    async def work() -> None:
        async with api.connect(broker.url) as bus:
            await bus.publish_many((topic, attributes, payload) for payload in payloads)

    broker.run(work())


def attach(broker: BrokerThread, topic: str, *flags: object) -> None:
    """Create the subscription: from now on, the broker keeps events for it."""
    assert tidings("sub", broker.url, topic, *flags, "--timeout", 0).returncode == 3


def read(broker: BrokerThread, topic: str, *flags: object, number: int) -> list[str]:
    done = tidings("sub", broker.url, topic, *flags, "--count", number, "--timeout", 20)
    assert done.returncode == 0, done
    return done.stdout.splitlines()


def rows(broker: BrokerThread) -> dict[str, Mapping[str, Any]]:
    done = tidings("subscriptions", broker.url, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return {row["name"]: row for row in json.loads(done.stdout)}


DEAD_LETTER = ["--durable", "a", "--max-deliveries", "1", "--dead-letter"]


# --- tidings sub


@pytest.mark.parametrize("flag", ["--durable", "--group"])
def test_the_next_reader_goes_on_where_the_last_one_stopped(
    broker: BrokerThread, name: str, flag: str
) -> None:
    attach(broker, f"/{name}", flag, name)
    publish(broker, f"/{name}", b"1", b"2", b"3")
    template = ("--format", "{payload} {attempt}")
    assert read(broker, f"/{name}", flag, name, *template, number=2) == ["1 1", "2 1"]
    publish(broker, f"/{name}", b"4")
    assert read(broker, f"/{name}", flag, name, *template, number=2) == ["3 1", "4 1"]
    assert rows(broker)[name]["waiting"] == rows(broker)[name]["unacknowledged"] == 0


def test_what_was_not_printed_comes_again(
    broker: BrokerThread, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(broker, f"/{name}", "--durable", name)
    publish(broker, f"/{name}", b"1", b"2")

    def full(self: Printer) -> None:
        if self.waiting:
            self._lines.clear()
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tidings.cli.shared.event_printer.Printer.flush", full)
        done = tidings("sub", broker.url, f"/{name}", "--durable", name, "--count", 2, "--timeout", 20)
    assert (done.returncode, done.stdout) == (2, "")
    assert "No space left" in done.stderr
    found = [json.loads(line) for line in read(broker, f"/{name}", "--durable", name, "--json", number=2)]
    assert [(event["payload"], event["attempt"]) for event in found] == [("1", 2), ("2", 2)]


def test_the_first_attempt_is_not_told(broker: BrokerThread, name: str) -> None:
    attach(broker, f"/{name}", "--durable", name)
    publish(broker, f"/{name}", b"1")
    (line,) = read(broker, f"/{name}", "--durable", name, "--json", number=1)
    assert "attempt" not in json.loads(line)


def test_what_sub_prints_pub_publishes(broker: BrokerThread, name: str, tmp_path: Path) -> None:
    attach(broker, f"/{name}", "--durable", name)
    publish(broker, f"/{name}", b"1", b"\xff", size=1, raw=b"\x00", huge=float("inf"))
    path = tmp_path / "lines"
    path.write_text(
        "\n".join(read(broker, f"/{name}", "--durable", name, "--json", number=2)), encoding="utf-8"
    )
    assert tidings("pub", broker.url, "--json-lines", "--file", path).returncode == 0
    found = [
        (dict(event.attributes), event.payload) for event in broker.settled() if event.topic == f"/{name}"
    ]
    assert len(found) == 4 and found[:2] == found[2:]


def test_every_option_reaches_the_subscription(broker: BrokerThread, name: str) -> None:
    attach(
        broker,
        f"/{name}/**",
        *("--durable", name, "--keep-for", "12h", "--max-unacked", 3, "--max-deliveries", 2),
        *("--dead-letter", "/dead/x", "--where", "size > 3", "--order", "fifo", "--takeover"),
    )
    row = rows(broker)[name]
    assert (row["kind"], row["topics"], row["filter"]) == ("durable", [f"/{name}/**"], "size > 3")
    assert 43_000 < row["lease_left_s"] <= 43_200
    publish(broker, f"/{name}/a", *(b"%d" % number for number in range(10)), size=4)
    publish(broker, f"/{name}/a", b"no", size=3)
    lines = read(
        broker, f"/{name}/**", "--durable", name, "--where", "size > 3", "--order", "fifo", "--raw", number=10
    )
    assert lines == [str(number) for number in range(10)]


def test_a_group_with_a_key(broker: BrokerThread, name: str) -> None:
    flags = ("--group", name, "--group-by", "customer")
    attach(broker, f"/{name}", *flags)
    publish(broker, f"/{name}", b"1", b"2", customer="c")
    assert read(broker, f"/{name}", *flags, "--raw", number=2) == ["1", "2"]
    assert rows(broker)[name]["kind"] == "group"
    done = tidings("sub", broker.url, f"/{name}/other", *flags, "--timeout", 0)
    assert done.returncode == 4 and name in done.stderr, "members have one filter"


def test_a_subscription_that_is_held_is_refused_and_taken_over(broker: BrokerThread, name: str) -> None:
    async def hold() -> tuple[Bus, Any]:
        bus = await api.connect(broker.url, name="holder").__aenter__()
        stream = await bus.subscribe(f"/{name}", durable=name).__aenter__()
        return bus, stream  # type: ignore[return-value]

    bus, _ = broker.run(hold())
    try:
        done = tidings("sub", broker.url, f"/{name}", "--durable", name, "--timeout", 0)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
        assert "holder" in done.stderr
        assert rows(broker)[name]["attached"] == ["holder"]
        attach(broker, f"/{name}", "--durable", name, "--takeover")
    finally:
        broker.run(bus.close())


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "subscribed\ntidings: 1 event had expired and was not shown\n"),
        (["--json"], '{"event": "subscribed"}\n{"notice": "1 event had expired and was not shown"}\n'),
    ],
)
def test_what_expired_is_told_at_the_end(
    broker: BrokerThread, name: str, flags: list[str], told: str
) -> None:
    attach(broker, f"/{name}", "--durable", name)
    assert tidings("pub", broker.url, f"/{name}", "old", "--expires", "0.01s").returncode == 0
    time.sleep(0.05)
    publish(broker, f"/{name}", b"new")
    assert rows(broker)[name]["expired"] == 0
    done = tidings("sub", broker.url, f"/{name}", "--durable", name, "--count", 1, *flags)
    assert (done.returncode, done.stderr) == (0, told)
    assert "new" in done.stdout and "old" not in done.stdout
    assert rows(broker)[name]["expired"] == 1
    for command in ("subscriptions", "status"):
        assert "expired" in tidings(command, broker.url).stdout
    status = json.loads(tidings("status", broker.url, "--json").stdout)
    assert {row["name"]: row["expired"] for row in status["durable"]}[name] == 1


def test_who_waits_for_a_broker_is_told_which(
    broker: BrokerThread, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidings.bus.durable_stream.DurableStream.uncovered", ("b7",))
    done = tidings("sub", broker.url, f"/{name}", "--durable", name, "--timeout", 0.1)
    assert done.stderr == "subscribed\ntidings: waits for what broker b7 keeps\n"
    done = tidings("sub", broker.url, f"/{name}", "--durable", name, "--timeout", 0.1, "--json")
    assert done.stderr.splitlines()[1] == '{"notice": "waits for what broker b7 keeps"}'


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--durable", "a", "--group", "b"], "--group: not allowed with --durable"),
        (["--group-by", "x"], "--group-by: requires --group"),
        (["--durable", "a", "--group-by", "x"], "--group-by: requires --group"),
        (["--takeover"], "--takeover: requires --durable"),
        (["--group", "a", "--takeover"], "--takeover: requires --durable"),
        (["--keep-for", "1d"], "--keep-for: requires --durable or --group"),
        (
            ["--durable", "a", "--keep-for", "long"],
            "--keep-for: expected a value such as 12h or 7d, not 'long'",
        ),
        (["--durable", "a", "--keep-for", "0d"], "--keep-for: must be above 0, such as 12h or 7d, not '0d'"),
        (["--durable", "a", "--keep-for", "1e9d"], "--keep-for: at most 11574d"),
        (["--durable", "a", "--max-unacked", "0"], "--max-unacked: expected a whole number from 1"),
        (
            ["--durable", "a", "--max-unacked", "9" * 18],
            "--max-unacked: expected a whole number from 1 to 1,000,000",
        ),
        (["--group", "a", "--group-by", "x" * 257], "group_by must have at most 256 characters"),
        (["--max-unacked", "3"], "--max-unacked: requires"),
        (["--durable", "a", "--max-deliveries", "0"], "--max-deliveries: expected a whole number"),
        (["--durable", "a", "--dead-letter", "/d"], "--dead-letter: requires --max-deliveries"),
        (
            ["--durable", "a", "--max-deliveries", "1", "--dead-letter", "/a"],
            "--dead-letter: '/a' is among the subscription's own topics",
        ),
        (
            ["--durable", "a", "--max-deliveries", "1", "--dead-letter", "d"],
            "--dead-letter: topic 'd' must start with '/'",
        ),
        (
            ["--durable", "a", "--max-deliveries", "1", "--dead-letter", "/d/*"],
            "--dead-letter: topic '/d/*' has a wildcard",
        ),
        (["--durable", "a b"], "--durable: name 'a b' must have"),
        (["--group", "a/b"], "--group: name 'a/b' must have"),
        (["--group", "a", "--order", "fifo"], "order 'fifo' is not available"),
        (["--durable", "a", "--keep-for", "-1d"], "--keep-for: expected a value such as 12h or 7d"),
        (["--durable", "a", "--start", "earliest", "--order", "total"], "--start: start= is not available"),
        (["--durable", "a", "--start", "yesterday"], "--start: expected new, earliest, last, an offset"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_do_not_fit(flags: list[str], told: str) -> None:
    done = tidings("sub", NOWHERE, "/a", *flags)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert told in done.stderr


# --- tidings subscriptions, tidings status, tidings cancel


def test_subscriptions_and_status_list_what_there_is(broker: BrokerThread, name: str) -> None:
    attach(broker, f"/{name}", "--durable", name, "--where", "size > 3")
    publish(broker, f"/{name}", b"1", b"2", size=4)
    row = rows(broker)[name]
    assert (row["broker"], row["attached"], row["waiting"], row["set_aside"]) == ("b0", [], 2, 0)
    shown = tidings("subscriptions", broker.url).stdout
    for word in (name, "size > 3", "waiting", "lease"):
        assert word in shown
    assert 604_000 < row["lease_left_s"] <= 604_800
    shown = tidings("status", broker.url).stdout
    assert "durable subscriptions and groups" in shown and name in shown
    assert "size > 3" not in shown, "only briefly"


def test_durations() -> None:
    assert [duration_text(seconds) for seconds in (0.4, 59, 60, 3_661, 604_799.9)] == [
        *("0 s", "59 s", "1 min 0 s", "1 h 1 min", "6 d 23 h")
    ]


def test_rows_of_other_brokers_may_lack_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_durable("", [{"name": "far", "broker": "b7", "attached": ["one", "two"], "new": 3}])
    shown = capsys.readouterr().out
    assert "far" in shown and "one, two" in shown


def test_a_network_without_durable_subscriptions() -> None:
    with BrokerThread(mode="best-effort") as other:
        assert "nothing is kept here for durable subscriptions" in tidings("subscriptions", other.url).stderr
        for arguments in (["subscriptions"], ["cancel", "x"], ["sub", "/a", "--durable", "x"]):
            done = tidings(arguments[0], other.url, *arguments[1:])
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1)
            assert "guaranteed" in done.stderr


def test_without_any_it_says_so() -> None:
    with BrokerThread() as other:
        assert tidings("subscriptions", other.url).stdout == "no durable subscriptions and no groups\n"
        assert tidings("subscriptions", other.url, "--json").stdout == "[]\n"
        assert "durable subscriptions" not in tidings("status", other.url).stdout


def test_a_subscription_is_cancelled(broker: BrokerThread, name: str) -> None:
    attach(broker, f"/{name}", "--durable", name)
    assert tidings("cancel", broker.url, name).stdout == f"cancelled {name}\n"
    assert name not in rows(broker)
    done = tidings("cancel", broker.url, name, "--json")
    assert (done.returncode, done.stdout) == (4, "")
    assert name in json.loads(done.stderr)["error"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_asks_first(
    broker: BrokerThread, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(broker, f"/{name}", "--durable", name)
    for answer in ("", "\n", "no\n", "yep\n"):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        done = tidings("cancel", broker.url, name)
        assert (done.returncode, done.stdout) == (2, "")
        assert "What waits for it is dropped. [y/N]" in done.stderr and "nothing has changed" in done.stderr
    assert name in rows(broker)
    monkeypatch.setattr(sys, "stdin", Terminal("Y\n"))
    assert tidings("cancel", broker.url, name, "--json").stdout == f'{{"cancelled": "{name}"}}\n'
    attach(broker, f"/{name}", "--durable", name)
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert tidings("cancel", broker.url, name, "--yes").returncode == 0


def test_cancel_needs_a_name(broker: BrokerThread) -> None:
    assert "missing argument 'SUBSCRIPTION'" in tidings("cancel", broker.url).stderr


# --- tidings dead NAME


@pytest.fixture
def aside(broker: BrokerThread, name: str) -> str:
    """The name of a durable subscription with three events that were delivered too often."""

    async def give_up() -> None:
        async with api.connect(broker.url) as bus:
            async with bus.subscribe(f"/{name}", durable=name, ack="manual", max_deliveries=1) as stream:
                for number, payload in enumerate((b"one", b"\xff", b"three")):
                    await bus.publish(f"/{name}", {"n": number}, payload)
                for _ in range(3):
                    await (await stream.get(20)).nack()
                with pytest.raises(TimeoutError):
                    await stream.get(0.5)

    broker.run(give_up())
    assert rows(broker)[name]["set_aside"] == 3
    return name


def test_what_is_set_aside_is_listed(broker: BrokerThread, aside: str) -> None:
    shown = tidings("dead", broker.url, aside).stdout.splitlines()
    assert len(shown) == 3
    assert " (1 attempt) " in shown[0] and shown[0].endswith(f": /{aside} n=0 | one")
    assert shown[1].endswith(f": /{aside} n=1 | \\xff")
    done = tidings("dead", broker.url, aside, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["attributes"]["n"] for row in found] == [0, 1, 2]
    assert found[0].keys() >= {"number", "attempts", "id", "topic"}
    assert (found[0]["payload"], found[1]["payload_hex"]) == ("one", "ff")


def test_what_is_set_aside_is_released_or_dropped(broker: BrokerThread, aside: str) -> None:
    found = [json.loads(line) for line in tidings("dead", broker.url, aside, "--json").stdout.splitlines()]
    number, event = found[0]["number"], found[1]["id"]
    done = tidings("dead", broker.url, aside, "--drop", "--id", number, "--json")
    assert json.loads(done.stdout) == {"dropped": 1, "numbers": [number]}
    assert tidings("dead", broker.url, aside, "--again", "--id", event).stdout == "released 1 event\n"
    assert read(broker, f"/{aside}", "--durable", aside, "--format", "{hex}", number=1) == ["ff"]
    assert tidings("dead", broker.url, aside, "--again").stdout == "released 1 event\n"
    assert read(broker, f"/{aside}", "--durable", aside, "--raw", number=1) == ["three"]
    assert tidings("dead", broker.url, aside).stdout == f"nothing is set aside for {aside}\n"
    assert tidings("dead", broker.url, aside, "--json").stdout == ""
    assert tidings("dead", broker.url, aside, "--again").stdout == "released 0 events\n"


def test_dropping_asks_on_a_terminal(
    broker: BrokerThread, aside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert tidings("dead", broker.url, aside, "--drop").returncode == 2
    assert rows(broker)[aside]["set_aside"] == 3
    assert tidings("dead", broker.url, aside, "--drop", "--yes").stdout == "dropped 3 events\n"


def test_nothing_is_set_aside_for_an_unknown_name(broker: BrokerThread) -> None:
    for flags in ([], ["--again"], ["--drop"]):
        done = tidings("dead", broker.url, "unknown", *flags)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1), done
        assert "unknown" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["billing", "--again", "--drop"], "--drop: not allowed with --again"),
        (["billing", "--archive", "x"], "--archive: only for a topic"),
        (["/dead/billing", "--drop"], "--drop: an archive keeps its events"),
        (["/dead/#"], "'#' is not a wildcard here"),
        ([], "missing argument 'WHAT'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_dead_flags_that_do_not_fit(broker: BrokerThread, arguments: list[str], told: str) -> None:
    done = tidings("dead", broker.url, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert told in done.stderr


def test_an_id_that_nothing_has(broker: BrokerThread, aside: str) -> None:
    done = tidings("dead", broker.url, aside, "--again", "--id", "4000", "--id", "x:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--id: not among the events set aside for '{aside}': 4000, x:1" in done.stderr
    assert rows(broker)[aside]["set_aside"] == 3
