"""Writes the result of an audit: Parquet tables for programs, a page with plots for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.scenarios.trace.verdict import Verdict
from tidings.spark.audit.archive import ArchivesAudited
from tidings.spark.audit.auditing import Audited
from tidings.spark.audit.plots import draw
from tidings.spark.audit.run import SPARK, AuditReport, Engine

MAX_PLOTTED = 10
"""Only this many traces get plots; the tables cover all."""

VERDICTS = pa.schema(
    [
        ("of", pa.string()),
        ("guarantee", pa.string()),
        ("holds", pa.bool_()),
        ("violations", pa.int64()),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
WITNESSES = pa.schema(
    [
        ("of", pa.string()),
        ("guarantee", pa.string()),
        ("number", pa.int64()),
        ("text", pa.string()),
        ("events", pa.list_(pa.string())),
        ("subscribers", pa.list_(pa.string())),
        ("positions", pa.list_(pa.int64())),
    ]
)
LATENCY = pa.schema(
    [
        ("of", pa.string()),
        ("subscriber", pa.string()),
        ("delivered", pa.int64()),
        ("expected", pa.int64()),
        ("missing", pa.int64()),
        ("delivery_ratio", pa.float64()),
        *((f"{name}_ms", pa.float64()) for name in ("mean", "p50", "p99", "max")),
    ]
)


def write_report(report: AuditReport, out: Path) -> None:
    """Write tables, plots and `report.md` into `out`, creating it if needed."""
    out.mkdir(parents=True, exist_ok=True)
    verdicts = list(_verdicts(report))
    rows = [
        {
            "of": of,
            "guarantee": found.guarantee,
            "holds": found.holds,
            "violations": found.violations,
            "counts": [*found.counts.items()],
        }
        for of, found in verdicts
    ]
    pq.write_table(pa.Table.from_pylist(rows, VERDICTS), out / "verdicts.parquet")
    pq.write_table(pa.Table.from_pylist(list(_witnesses(verdicts)), WITNESSES), out / "witnesses.parquet")
    tables = [latency_table(trace) for trace in report.traces] or [LATENCY.empty_table()]
    pq.write_table(pa.concat_tables(tables), out / "latency.parquet")
    plots = {
        number: draw(trace, out, f"{number}-" if len(report.traces) > 1 else "")
        for number, trace in enumerate(report.traces[:MAX_PLOTTED], 1)
    }
    (out / "report.md").write_text(page(report, plots), encoding="utf-8")


def _verdicts(report: AuditReport) -> Iterator[tuple[str, Verdict]]:
    for trace in report.traces:
        yield from ((trace.directory, verdict) for verdict in trace.verdicts)
    if report.archives is not None:
        yield from ((", ".join(report.archives.directories), verdict) for verdict in report.archives.verdicts)


def _witnesses(verdicts: list[tuple[str, Verdict]]) -> Iterator[dict[str, Any]]:
    for of, verdict in verdicts:
        for number, witness in enumerate(verdict.witnesses):
            yield {
                "of": of,
                "guarantee": verdict.guarantee,
                "number": number,
                "text": witness.text,
                "events": list(witness.events),
                "subscribers": list(witness.subscribers),
                "positions": list(witness.positions),
            }


def latency_table(trace: Audited) -> Any:
    """Return one row per subscriber; the ratio is 1 if nothing was expected, latencies are null if nothing was
    delivered."""
    rows = trace.quantities.subscribers
    expected = rows["expected"]
    ratio = np.where(expected > 0, 1 - rows["missing"] / np.maximum(expected, 1), 1.0)
    names = pa.array(trace.subscribers, pa.string()).take(pa.array(rows["subscriber"]))
    columns = [pa.array([trace.directory] * len(rows), pa.string()), names]
    columns += [pa.array(rows[name].copy()) for name in ("delivered", "expected", "missing")]
    columns.append(pa.array(ratio))
    for name in ("mean", "p50", "p99", "max"):
        columns.append(pa.array(rows[name].copy(), from_pandas=True))  # NaN is null
    return pa.Table.from_arrays(columns, schema=LATENCY)


def page(report: AuditReport, plots: dict[int, list[str]]) -> str:
    lines = [
        "# Audit",
        "",
        "Everything that was checked holds." if report.holds else "**Not everything holds.**",
        "",
        f"Audited {where(report.engine)}.",
        "",
    ]
    for number, trace in enumerate(report.traces, 1):
        lines += [
            f"## Trace {_text(trace.directory)}",
            "",
            *verdict_lines(trace.verdicts),
            *_metric_lines(trace),
        ]
        for name in plots.get(number, []):
            lines += [f"![{name}]({name}.png)", ""]
    if len(report.traces) > MAX_PLOTTED:
        lines += [f"Plots are drawn for the first {MAX_PLOTTED} traces.", ""]
    if report.archives is not None:
        lines += _archive_lines(report.archives)
    return "\n".join(lines)


def where(engine: Engine) -> str:
    return f"{'on Spark' if engine.name == SPARK else 'in this process'} ({engine.why})"


def verdict_lines(verdicts: list[Verdict]) -> list[str]:
    lines = ["| guarantee | holds | violations |", "| --- | --- | --- |"]
    for verdict in verdicts:
        lines.append(
            f"| {verdict.guarantee} | {'yes' if verdict.holds else '**no**'} | {verdict.violations:,} |"
        )
    lines.append("")
    for verdict in verdicts:
        if verdict.witnesses:
            lines += [f"First violations of {verdict.guarantee}:", ""]
            lines += [*(f"- {_text(witness.text)}" for witness in verdict.witnesses), ""]
    return lines


def _metric_lines(trace: Audited) -> list[str]:
    traffic = trace.traffic
    lines = ["| what | value |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in metric_rows(trace)]
    lines.append("")
    if traffic.kinds:
        lines += ["| messages between brokers | number |", "| --- | --- |"]
        lines += [f"| {_text(kind)} | {number:,} |" for kind, number in traffic.kinds.items()]
        lines.append("")
    lines += [*(f"Note: {_text(remark)}." for remark in trace.remarks), ""] if trace.remarks else []
    return lines


def metric_rows(trace: Audited) -> list[tuple[str, str]]:
    """Return the main numbers, formatted for people."""
    metrics, traffic = trace.quantities.metrics, trace.traffic
    latency = metrics.latency_ms
    times = "-"
    if latency is not None:
        cells = (latency.mean, latency.p50, latency.p99, latency.max)
        times = " / ".join(f"{cell:,.3f}" for cell in cells) + " ms (mean / p50 / p99 / max)"
    overhead = (
        "-" if traffic.overhead is None else f"{traffic.overhead:.2f} messages between brokers per event"
    )
    return [
        ("mode", trace.mode or "-"),
        ("published", f"{metrics.published:,}"),
        ("expected", f"{metrics.expected:,}"),
        ("delivered", f"{metrics.delivered:,}"),
        *([("expired", f"{metrics.expired:,}")] if metrics.expired else []),
        ("delivery ratio", f"{metrics.delivery_ratio:.4%}"),
        ("duplicates", f"{metrics.duplicates:,}"),
        ("out of order", f"{metrics.out_of_order:,}"),
        ("latency", times),
        ("overhead", overhead),
        ("traffic", f"{traffic.messages:,} messages, {traffic.bytes:,} bytes, {traffic.dropped:,} dropped"),
    ]


def _archive_lines(archives: ArchivesAudited) -> list[str]:
    lines = ["## Archives", ""]
    pairs = zip(archives.directories, archives.events, strict=True)
    lines += [*(f"- {_text(directory)}: {events:,} events" for directory, events in pairs), ""]
    lines += verdict_lines(archives.verdicts)
    lines += [*(f"- {name}: {why}" for name, why in archives.not_checked.items()), ""]
    lines += [*(f"Note: {_text(remark)}." for remark in archives.remarks), ""] if archives.remarks else []
    return lines


def _text(text: str) -> str:
    """Escape users' text, so that it is not taken for markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in " ".join(text.split()))
