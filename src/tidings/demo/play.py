"""Runs the demo from its scenario to its report; the caller shows it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidings.demo.archives import audit_archives
from tidings.demo.report import write_report
from tidings.demo.result import DemoResult, findings, order_given_by, site_members
from tidings.demo.scene import Scene
from tidings.demo.story import ARCHIVES, SCENARIO, TRACE, Story
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import load_scenario

REPORT = "report.html"


def prepare(out: Path) -> Story:
    """Return the story that writes to `out`, and copy its scenario there for users to change."""
    shutil.copyfile(SCENARIO, out / SCENARIO.name)
    return Story(Scene(expand(load_scenario(SCENARIO))), out)


def conclude(
    scene: Scene, out: Path, summary: Mapping[str, Any], *, spark: bool, progress: Callable[[float], None]
) -> DemoResult:
    """Check the trace, audit the archives, write the report, and return the result."""
    found = findings(scene.plan, out / TRACE)
    result = DemoResult(
        published=found.published,
        subscribers=found.subscribers,
        faults=found.faults,
        verdicts=found.verdicts,
        archives=audit_archives(out / ARCHIVES, found.published, spark=spark, progress=progress),
        order_given_by=order_given_by(summary),
        sites=site_members(scene.plan),
        timeline=scene.happenings,
        out=str(out.resolve()),
        report=str((out / REPORT).resolve()),
    )
    write_report(result, out / TRACE, out / REPORT)
    return result
