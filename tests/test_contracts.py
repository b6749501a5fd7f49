"""The layers of ARCHITECTURE.md, kept by import-linter, and what importing tidings may cost."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_import_contract_is_kept() -> None:
    command = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_importing_tidings_imports_nothing_heavy() -> None:
    code = "import sys, tidings; print(*sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pyspark", "pyarrow", "numpy", "scipy", "asyncio", "typer", "rich"}
    assert not heavy & set(result.stdout.split())


def test_the_command_line_starts_without_the_data_libraries() -> None:
    code = "import sys; import tidings.cli.main; print(*sorted(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyspark", "pyarrow", "numpy", "scipy"} & set(result.stdout.split())


def test_a_broker_that_comes_back_from_a_crash_imports_no_data_library(tmp_path: Path) -> None:
    """Its store has a log then, which is checked."""
    crash = (
        "import os, sys; from tidings.storage.disk_store import DiskStore; store = DiskStore(sys.argv[1]); "
    )
    crash += "store.write([('log', b'a', b'1')]); os._exit(0)"
    again = "import sys; import tidings.drivers.sockets.broker; from tidings.storage.disk_store import DiskStore; "
    again += "print(*DiskStore(sys.argv[1]).get('log', b'a').split(), *sorted(sys.modules))"
    path = str(tmp_path / "store")
    subprocess.run([sys.executable, "-c", crash, path], check=True)
    assert (tmp_path / "store-wal").stat().st_size > 0
    result = subprocess.run([sys.executable, "-c", again, path], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("b'1' ")
    assert not {"pyspark", "pyarrow", "numpy", "scipy", "tidings.storage.archive"} & set(
        result.stdout.split()
    )
