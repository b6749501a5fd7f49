"""Defines what a study of a paper's figures is, and lists the studies.

A study is a subclass of `Study`, with one instance in its module. `run` is called in Spark's workers with a point from
`points`, and depends on nothing else; everything else is called where the command runs.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pyarrow as pa

from tidings.core.errors import PipelineError

Point = dict[str, Any]
"""The parameters of one task, including the seed; they fit JSON."""
Row = dict[str, Any]
Place = tuple[float | str, float] | tuple[float | str, float, float]
"""x and y, and half the height of the error bar if there is one; an x that is text makes categories."""

STUDIES: dict[str, str] = {
    "ordering": "tidings.studies.ordering.study:STUDY",
    "partitions": "tidings.studies.partitions.study:STUDY",
    "epidemic": "tidings.studies.epidemic.study:STUDY",
    "polarized": "tidings.studies.polarized.study:STUDY",
}
"""The module and attribute of each study, imported on demand."""


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """A statement of a paper, and what we measured. `holds` is computed from the results, never written by hand."""

    figure: str
    """As cited: `fig 7`, `table 2`, `section 5.2`."""
    text: str
    """What the paper says, in our words."""
    paper: str
    """The paper's number or curve."""
    measured: str
    holds: bool
    why: str = ""
    """Why our result or our experiment differs."""
    undecided: bool = False
    """Neither answer is certain: too few runs to tell."""

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "undecided" if self.undecided else "does not hold"


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot, written as NAME.png and NAME.svg."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[Place]]
    log_x: bool = False
    log_y: bool = False
    paper: Mapping[str, Sequence[Place]] = field(default_factory=dict)
    """The paper's own values, if its text gives any; dashed, in the colour of the series of the same name."""
    figure: str = ""
    """The paper's figure that this reproduces; the report shows its claims beside it."""


class Study(ABC):
    """A paper's experiments: the points, the rows of each, and the panels and claims drawn from all of them."""

    name: str
    title: str
    schema: pa.Schema
    """The schema of the rows that `run` returns, including the parameters that panels and claims need."""
    version: int = 1
    """Raise it when `run` returns something else for the same point: kept results of older versions are then
    ignored."""

    @abstractmethod
    def points(self, quick: bool) -> list[Point]:
        """Return the points, one Spark task each; no two are equal."""

    @abstractmethod
    def run(self, point: Point) -> list[Row]:
        """Return the rows of one point: a pure function of it."""

    @abstractmethod
    def panels(self, table: pa.Table, quick: bool) -> list[Panel]: ...

    @abstractmethod
    def claims(self, table: pa.Table, quick: bool) -> list[PaperClaim]: ...

    def cost(self, point: Point) -> float:
        """Return roughly the CPU seconds of a point: the longest start first, so that no core is idle at the end."""
        return 1.0


def load_study(name: str) -> Study:
    """Return the study of that name; PipelineError suggests the nearest."""
    target = STUDIES.get(name)
    if target is None:
        near = difflib.get_close_matches(name, STUDIES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known reproductions: {', '.join(STUDIES)}"
        raise PipelineError(f"unknown reproduction {name!r}: {hint}")
    return study_at(target)


def study_at(target: str) -> Study:
    module, _, attribute = target.partition(":")
    study = getattr(import_module(module), attribute)
    assert isinstance(study, Study)
    return study
