"""Writes the demo's report: one self-contained HTML file with what happened, who got what, and the plots."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from tidings.demo.result import DemoResult
from tidings.demo.scene import TITLE
from tidings.demo.story import ARCHIVES, SCENARIO, TRACE
from tidings.extras import is_installed, sentence
from tidings.scenarios.trace.reader import Trace

STYLE = Path(__file__).with_name("report.css")
NO_PLOTS = sentence("a plot", "spark", ["matplotlib"])
RECEIVED = "A flat line is a subscriber that waits. Its events arrive afterwards, in order."
WAITING = "Events published for a subscriber and not delivered to it yet. At the end there must be none."
LATENCY = "From publication to delivery, on a logarithmic scale."


class Figure(NamedTuple):
    title: str
    caption: str
    svg: str


def write_report(result: DemoResult, trace: Path, path: Path) -> None:
    path.write_text(page(result, plots(result, trace)), encoding="utf-8")


def plots(result: DemoResult, trace: Path) -> list[Figure]:
    """Return the plots; none without matplotlib."""
    if not is_installed("matplotlib"):
        return []
    from tidings.demo.plots import latency_plot, received_plot, waiting_plot

    coded = Trace.read(trace).coded
    return [
        Figure("Received over time", RECEIVED, received_plot(result, coded)),
        Figure("Waiting to be delivered", WAITING, waiting_plot(result, coded)),
        Figure("How long deliveries took", LATENCY, latency_plot(result, coded)),
    ]


def page(result: DemoResult, drawn: Sequence[Figure]) -> str:
    sections = [
        _section("The network", _network(result)),
        _section("What happened", _timeline(result), _faults(result)),
        _section("Who got what", _subscribers(result)),
        *(
            _section(one.title, f"<p class='note'>{one.caption}</p><figure>{one.svg}</figure>")
            for one in drawn
        ),
        _section("What was checked", _checks(result)),
        _section("Try next", _commands(result)),
    ]
    if not drawn:
        sections.insert(3, f"<p class='note'>{escape(NO_PLOTS)}</p>")
    return "\n".join(
        [
            "<!doctype html>",
            "<html lang='en'><head><meta charset='utf-8'><title>tidings demo</title>",
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f"<style>{STYLE.read_text(encoding='utf-8')}</style></head><body>",
            *_opening(result),
            *sections,
            "</body></html>\n",
        ]
    )


def _opening(result: DemoResult) -> list[str]:
    expected = sum(one.expected for one in result.subscribers)
    numbers = {
        "events published": result.published,
        "deliveries expected": expected,
        "received": sum(one.received for one in result.subscribers),
        "missing": sum(one.missing for one in result.subscribers),
        "repeated": sum(one.repeated for one in result.subscribers),
    }
    if result.holds:
        verdict = "<p class='verdict holds'>Nothing was lost, nothing came twice, and all saw one order.</p>"
    else:
        verdict = "<p class='verdict violated'>Not everything that was promised holds.</p>"
    cells = (f"<div><b>{number:,}</b><span>{name}</span></div>" for name, number in numbers.items())
    return [
        f"<h1>{TITLE}</h1>",
        verdict,
        f"<div class='numbers'>{''.join(cells)}</div>",
    ]


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = list(rows)
    numeric = [all(isinstance(line[index], int | float) for line in lines) for index in range(len(columns))]
    head = "".join(
        f"<th{' class=number' if right else ''}>{escape(column)}</th>"
        for column, right in zip(columns, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, line))}</tr>" for line in lines)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _cell(value: object) -> str:
    match value:
        case None:
            return "<td>-</td>"
        case int():
            return f"<td class='number'>{value:,}</td>"
        case float():
            return f"<td class='number'>{value:,.1f}</td>"
        case _:
            return f"<td>{escape(str(value))}</td>"


def _network(result: DemoResult) -> str:
    rows = (
        (
            name,
            *(", ".join(names) for names in (one.brokers, one.sequencers, one.publishers, one.subscribers)),
        )
        for name, one in result.sites.items()
    )
    columns = ("site", "brokers", "sequencers beside", "publishers", "subscribers")
    kept = " and ".join(result.archives.events)
    return _table(columns, rows) + f"<p>Recorders at {escape(kept)} archive all events.</p>"


def _timeline(result: DemoResult) -> str:
    items = (
        f"<li><time>{'' if at_s is None else f'{at_s:.1f} s'}</time>{escape(text)}</li>"
        for at_s, text in result.timeline
    )
    return f"<ol class='timeline'>{''.join(items)}</ol>"


def _faults(result: DemoResult) -> str:
    rows = (
        (one.text, one.at_s, one.until_s, one.published, one.waited, one.caught_up_s) for one in result.faults
    )
    columns = (
        "fault",
        "from (s)",
        "to (s)",
        "published meanwhile",
        "deliveries that waited",
        "caught up after (s)",
    )
    active = ", ".join(result.order_given_by.values())
    note = f"<p>At the end the sequencer beside {escape(active)} gives the order.</p>" if active else ""
    return _table(columns, rows) + note


def _subscribers(result: DemoResult) -> str:
    rows = (
        (
            one.name,
            one.site,
            one.asks_for,
            one.order,
            one.expected,
            one.received,
            one.missing,
            one.repeated,
            one.latency_p50_ms,
            one.latency_max_ms,
        )
        for one in result.subscribers
    )
    counts = ("expected", "received", "missing", "repeated", "median (ms)", "slowest (ms)")
    return _table(("subscriber", "site", "asks for", "order", *counts), rows)


def _checks(result: DemoResult) -> str:
    where = "archives, on Spark" if result.archives.on_spark else "archives"
    found = _table(("promise", "trace", where), result.checks())
    found += "".join(f"<p class='violated'>{escape(text)}</p>" for text in result.witnesses())
    if result.archives.why_not:
        found += f"<p class='note'>{escape(left_out(result))}</p>"
    return found


def left_out(result: DemoResult) -> str:
    return f"The audit on Spark was left out; the archives were audited locally: {result.archives.why_not}"


def _commands(result: DemoResult) -> str:
    out = Path(result.out)
    again, virtual = out / "again", out / "virtual"
    commands = (
        (
            "Run the scenario again; change it first, if you like",
            "up",
            "--scenario",
            out / SCENARIO.name,
            "--out",
            again,
            "--check",
        ),
        (
            "Run it in virtual time",
            "sim",
            out / SCENARIO.name,
            "--out",
            virtual,
            "--check",
        ),
        ("Audit the trace", "audit", out / TRACE),
        ("Print an archive, in its order", "get", out / ARCHIVES / next(iter(result.archives.events))),
        ("Start a network of your own", "up"),
    )
    lines = (
        f"<dt>{escape(what)}</dt><dd><code>{escape(shlex.join(['tidings', *map(str, words)]))}</code></dd>"
        for what, *words in commands
    )
    return f"<dl>{''.join(lines)}</dl>"
