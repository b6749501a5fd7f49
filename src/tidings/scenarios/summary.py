"""Writes `summary.json`, with the same keys for simulated and live runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from msgspec.structs import asdict

from tidings.core.ordering.layout import Layout
from tidings.core.ordering.replication.replica import ReplicaRole
from tidings.scenarios.file.expand import RunPlan
from tidings.scenarios.trace.metrics import Latency, Metrics
from tidings.scenarios.trace.origin import SUMMARY
from tidings.scenarios.trace.writer import TROUBLES


def summary_of(plan: RunPlan, found: Metrics, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary. `rest` is what each kind of run counts itself; None for what it does not count."""
    return {
        "seed": plan.scenario.seed,
        "mode": plan.scenario.overlay.mode,
        "brokers": len(plan.topology.brokers),
        **asdict(found),
        "latency_ms": asdict(found.latency_ms or Latency()),
        **rest,
    }


def ordering_summary(
    layout: Layout,
    stamped: int,
    entries: int,
    changes_of_role: int | None,
    broken: list[str],
    servers: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the ordering's part. `entries`: of all timestamps. `broken`: subscriptions that ended, and why."""
    return {
        "causal": layout.causal,
        "topics": len(layout.topics),
        "stamped": stamped,
        "mean_timestamp_entries": entries / stamped if stamped else 0.0,
        "changes_of_role": changes_of_role,
        "broken": broken,
        "servers": servers,
    }


def status_of(roles: Mapping[str, str]) -> str:
    """Return the status of a server whose replicas have these roles: active, lost for good, or waiting."""
    for status in (ReplicaRole.ACTIVE, ReplicaRole.LOST):
        if status in roles.values():
            return str(status)
    return str(ReplicaRole.WAITING)


def write_summary(out: Path, summary: dict[str, Any], began_at: float) -> dict[str, Any]:
    """Add the wall time since `began_at` (from `perf_counter`), write the summary and return it."""
    summary["wall_s"] = round(perf_counter() - began_at, 3)
    path = out / SUMMARY
    with TROUBLES.told(path):
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary
