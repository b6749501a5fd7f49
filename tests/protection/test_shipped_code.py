"""Which code decides results that are kept, and which code Spark's workers get."""

from __future__ import annotations

import io
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import pyspark_tidings
import tidings
from tidings.core.errors import PipelineError
from tidings.spark.session import package_zip
from tidings.studies.keeping import DECIDING, source_files
from tidings.studies.study import STUDIES

LOADED = """
import sys
from importlib import import_module
for name in sys.argv[1:]:
    import_module(name)
print(*(name for name in sys.modules if name.startswith("tidings.")))
"""


def test_all_that_experiments_run_decides_their_results() -> None:
    """The studies' own code beside it has a version, which is part of a result's name."""
    studies = [place.partition(":")[0] for place in STUDIES.values()]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *studies], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert "scenarios" in loaded
    assert loaded - {"studies", "former_paths", "extras"} <= {
        package.__name__.split(".")[1] for package in DECIDING
    }


def test_a_package_without_files_decides_nothing_and_is_refused(tmp_path: Path) -> None:
    empty = ModuleType("tidings.moved")
    empty.__path__ = [str(tmp_path), str(tmp_path / "absent")]
    with pytest.raises(PipelineError, match=r"tidings\.moved has no source files"):
        source_files(empty)
    for package in DECIDING:
        assert source_files(package)


def test_the_workers_get_every_module() -> None:
    with zipfile.ZipFile(io.BytesIO(package_zip())) as archive:
        shipped = set(archive.namelist())
    wanted = {"tidings/__init__.py", "pyspark_tidings/__init__.py", "tidings/py.typed"}
    for package in (tidings, pyspark_tidings):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            path = module.name.replace(".", "/")
            wanted.add(f"{path}/__init__.py" if module.ispkg else f"{path}.py")
    assert len(wanted) > 300
    assert wanted <= shipped


def test_workers_that_would_get_nothing_are_told(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="has no package tidings"):
        package_zip(tmp_path)
    (tmp_path / "tidings").mkdir()
    (tmp_path / "tidings" / "__init__.py").touch()
    with pytest.raises(PipelineError, match="has no package pyspark_tidings"):
        package_zip(tmp_path)
