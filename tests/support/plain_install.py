"""A fresh environment with the wheel of tidings and what that requires, and nothing else.

What it requires is copied from the environment of the tests, which is pinned: no package index is asked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path
from shutil import copyfile

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def build_wheel(directory: Path) -> Path:
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = directory.glob("tidings-*.whl")
    return wheel


class PlainInstall:
    def __init__(self, directory: Path) -> None:
        wheel = build_wheel(directory)
        environment = directory / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        self.python = environment / "bin" / "python"
        self.command = environment / "bin" / "tidings"
        (self.site,) = (environment / "lib").glob("python3.*/site-packages")
        for found in required(wheel).values():
            copy(found, self.site)
        install = [*PIP, "--python", self.python, "install", "--no-index", "--no-deps", wheel]
        subprocess.run(install, check=True, capture_output=True)

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.site.rglob("*") if path.is_file())

    def run(self, *command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=120, cwd=cwd, env=kept
        )

    def tidings(self, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.run(self.command, *arguments, cwd=cwd)

    def program(self, text: str) -> str:
        """What a Python program prints."""
        done = self.run(self.python, "-c", text)
        assert done.returncode == 0, done.stderr
        return done.stdout


def required(wheel: Path) -> dict[str, Distribution]:
    """All that a plain install brings, by name."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().partition("\n\n")[0].splitlines()
    waiting = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    found: dict[str, Distribution] = {}
    while waiting:
        requirement = Requirement(waiting.pop())
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and requirement.name not in found:
            found[requirement.name] = distribution(requirement.name)
            waiting += found[requirement.name].requires or ()
    return found


def copy(found: Distribution, site: Path) -> None:
    for file in found.files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            copyfile(found.locate_file(file), target)
