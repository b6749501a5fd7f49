"""What lines of events look like: templates, raw payloads, timestamps."""

from __future__ import annotations

import io
import sys

import pytest
import typer

from command import tidings
from tidings.cli.shared.event_format import FIELDS, parse_format, time_text
from tidings.cli.shared.event_printer import PayloadForm, Printer
from tidings.cli.shared.line_options import make_printer
from tidings.core.events.event import Event
from tidings.core.events.position import OrderPosition

NOWHERE = "tidings://127.0.0.1:9"
AT = 1_700_000_000_123_456_789


def event(payload: bytes = b"hello", topic: str = "/a", **attributes: object) -> Event:
    return Event("p", 2, 7, topic, AT, attributes, payload)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("{topic} {payload}", "/a hello"),
        ("", ""),
        ("no fields", "no fields"),
        ("{{{topic}}}", "{/a}"),
        ("{id}|{source}|{incarnation}|{sequence}", "p~2:7|p|2|7"),
        ("{published_at} {time}", f"{AT} 2023-11-14T22:13:20.123456Z"),
        ("{attributes}", 'size=12 name="two words" a.b=true'),
        ("{attributes.size} {attributes.name}", "12 two words"),
        ("{a[size]} {attributes[name]} {attributes.a.b} {a[a.b]}", "12 two words true true"),
        ("<{attributes.none}> <{a[none]}>", "<> <>"),
        ("{size} {hex}", "5 68656c6c6f"),
        ("{attempt} [{order}]", "1 []"),
        (r"{topic}\t{payload}\n\\", "/a\thello\n\\"),
        ("{topic:5}|{topic:>5}|{topic:.^6}|{topic:<3}", "/a   |   /a|../a..|/a "),
    ],
)
def test_a_template(template: str, line: str) -> None:
    given = event(size=12, name="two words", **{"a.b": True})
    assert parse_format(template)(given) == line


def test_a_payload_stays_on_its_line_and_text_does_not() -> None:
    given = event("zwei\nZeilen \x1b[31m é".encode() + b"\xff")
    assert parse_format("{payload}")(given) == "zwei\\nZeilen \\x1b[31m é\\xff"
    assert parse_format("{text}")(given) == "zwei\nZeilen \x1b[31m é\\xff"


def test_an_event_that_came_again_in_its_order() -> None:
    given = event()
    given.__dict__["order"] = OrderPosition("/a/**", 12, {})
    assert parse_format("{order}")(given) == "/a/**:12"


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{topc}", "unknown field 'topc'; did you mean 'topic'?"),
        ("{}", "unknown field ''"),
        ("{0}", "unknown field '0'"),
        ("{topic.__class__}", "unknown field 'topic.__class__'"),
        ("{topic[0]}", "unknown field 'topic[0]'"),
        ("{attributes.}", "unknown field 'attributes.'"),
        ("{a[]}", "unknown field 'a[]'"),
        ("{__dict__}", "unknown field '__dict__'"),
        ("{topic", "expected '}'"),
        ("topic}", "Single '}'"),
        ("{topic!r}", "{topic!r}: no conversion"),
        ("{topic:d}", "{topic:d}: expected a width"),
        ("{topic:99999}", "expected a width of at most 9999"),
        ("{topic:{id}}", "expected a width"),
        ("{topic:>}", "expected a width"),
    ],
)
def test_a_bad_template_is_reported_before_anything_happens(template: str, told: str) -> None:
    with pytest.raises(typer.BadParameter) as error:
        parse_format(template)
    assert told in error.value.message
    done = tidings("sub", NOWHERE, "/a", "--format", template)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("tidings: --format: ")


def test_the_fields_are_named_in_the_error() -> None:
    with pytest.raises(typer.BadParameter) as error:
        parse_format("{x}")
    assert all(name in error.value.message for name in FIELDS)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--format", "x", "--json"], "--format: not allowed with --json"),
        (["--raw", "--json"], "--raw: not allowed with --json"),
        (["--raw", "--format", "x"], "--raw: not allowed with --format"),
        (["--timestamps", "--json"], "--timestamps: not allowed with --json"),
        (["--timestamps", "--raw"], "--timestamps: not allowed with --raw"),
        (["--no-newline"], "--no-newline: requires --raw"),
        (["--format", ""], "--format: must not be empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_flags_that_exclude_each_other(flags: list[str], told: str) -> None:
    done = tidings("sub", NOWHERE, "/a", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def printed(printer: Printer, *events: Event, monkeypatch: pytest.MonkeyPatch) -> bytes:
    written = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))
        for one in events:
            printer.add(one)
        assert printer.waiting == printer.printed == len(events)
        printer.flush()
        assert printer.waiting == 0
        printer.flush()
        return written.getvalue()


def test_raw_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [event(b"\x00\xff"), event(b""), event(b"a\nb")]
    flags = {"raw": True, "timestamps": False, "as_json": False}
    lines = make_printer(PayloadForm.TEXT, None, no_newline=False, **flags)
    assert printed(lines, *given, monkeypatch=monkeypatch) == b"\x00\xff\n\na\nb\n"
    together = make_printer(PayloadForm.TEXT, None, no_newline=True, **flags)
    assert printed(together, *given, monkeypatch=monkeypatch) == b"\x00\xffa\nb"


def test_timestamps_before_usual_lines_and_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"raw": False, "no_newline": False, "timestamps": True, "as_json": False}
    usual = make_printer(PayloadForm.TEXT, None, **flags)
    at = "2023-11-14T22:13:20.123456Z"
    assert printed(usual, event(size=1), monkeypatch=monkeypatch).decode() == f"{at} /a size=1 | hello\n"
    own = make_printer(PayloadForm.TEXT, "{payload}", **flags)
    assert printed(own, event(), monkeypatch=monkeypatch).decode() == f"{at} hello\n"


def test_times_at_the_edges() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000000Z"
    assert time_text(2**63 - 1).startswith("2262-04-11T")
    assert time_text(10**30) == f"{10**30} ns"
