"""What a study of a paper's figures consists of, and which studies there are.

A study is a subclass of `Study`, and one instance of it in its module. `run` is called in Spark's workers, with a
point from `points`, and depends on nothing else; everything else is called where the command runs.
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
"""The parameters of one task, JSON-able, the seed among them."""
Row = dict[str, Any]
Place = tuple[float | str, float] | tuple[float | str, float, float]
"""x and y, and half the height of the error bar where there is one; an x that is text makes categories."""

STUDIES: dict[str, str] = {
    "ordering": "tidings.studies.ordering.study:STUDY",
    "partitions": "tidings.studies.partitions.study:STUDY",
    "epidemic": "tidings.studies.epidemic.study:STUDY",
    "polarized": "tidings.studies.polarized.study:STUDY",
}
"""Where each study is: module and attribute, imported when asked for."""


@dataclass(frozen=True, slots=True)
class PaperClaim:
    """One statement of a paper, and what we measured. `holds` is computed from the results, never written by hand."""

    figure: str
    """As one cites it: `fig 7`, `table 2`, `section 5.2`."""
    text: str
    """What the paper says, in our words."""
    paper: str
    """The paper's number or curve."""
    measured: str
    holds: bool
    why: str = ""
    """Where ours differs, or is not quite the same experiment: why."""
    undecided: bool = False
    """It is not known to hold, nor known not to: too few runs to tell."""

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "undecided" if self.undecided else "does not hold"


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing: a file NAME.png and NAME.svg."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[Place]]
    log_x: bool = False
    log_y: bool = False
    paper: Mapping[str, Sequence[Place]] = field(default_factory=dict)
    """The paper's own values where its text gives some; dashed, in the colour of the series of the same name."""
    figure: str = ""
    """Which of the paper's figures this is: its claims stand beside it in the report."""


class Study(ABC):
    """A paper's experiments: points, what each gives, and what is drawn and said of all of them."""

    name: str
    title: str
    schema: pa.Schema
    """Of the rows that `run` returns; parameters that panels and claims need are columns as well."""
    version: int = 1
    """Raise it when `run` gives something else for the same point: kept results of older versions are not used."""

    @abstractmethod
    def points(self, quick: bool) -> list[Point]:
        """One Spark task each; no two are equal."""

    @abstractmethod
    def run(self, point: Point) -> list[Row]:
        """The rows of one point: a pure function of it."""

    @abstractmethod
    def panels(self, table: pa.Table, quick: bool) -> list[Panel]: ...

    @abstractmethod
    def claims(self, table: pa.Table, quick: bool) -> list[PaperClaim]: ...

    def cost(self, point: Point) -> float:
        """Roughly the CPU seconds of a point: the longest are started first, so that no core is idle at the end."""
        return 1.0


def load_study(name: str) -> Study:
    """PipelineError, with the nearest name, if there is no such study."""
    target = STUDIES.get(name)
    if target is None:
        near = difflib.get_close_matches(name, STUDIES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(STUDIES)}"
        raise PipelineError(f"no reproduction is called {name!r}: {hint}")
    return study_at(target)


def study_at(target: str) -> Study:
    module, _, attribute = target.partition(":")
    study = getattr(import_module(module), attribute)
    assert isinstance(study, Study)
    return study
