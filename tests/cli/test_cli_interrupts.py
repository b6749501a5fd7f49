"""Ctrl-C is quiet, whenever it comes: exit code 130, and nothing on stderr."""

from __future__ import annotations

import subprocess
import sys

import pytest

STRIKE = """
import signal, sys

class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Strike())
sys.argv = ["tidings", *{arguments!r}]
from tidings.cli.__main__ import main
main()
"""
DESTRUCTOR = """
import signal, time
from tidings.cli.shared.running import Terminated, raise_on_signals

class Strikes:
    def __del__(self):
        signal.raise_signal({number})

raise_on_signals()
try:
    Strikes()
    time.sleep(60)
except {error} as error:
    print("raised")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "module",
    ["typer", "tidings.cli.audit", "tidings.cli.shared.running", "pydantic", "tidings.bus.bus", "uvloop"],
)
def test_ctrl_c_while_a_module_is_imported(module: str) -> None:
    done = run(STRIKE.format(module=module, arguments=["sub", "tidings://127.0.0.1:9", "/a"]))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("number", "error"), [("signal.SIGINT", "KeyboardInterrupt"), ("signal.SIGTERM", "Terminated")]
)
def test_a_signal_inside_a_destructor_is_not_forgotten(number: str, error: str) -> None:
    done = run(DESTRUCTOR.format(number=number, error=error))
    assert (done.stdout, done.stderr) == ("raised\n", "")


def test_ctrl_c_that_python_wraps_into_another_error() -> None:
    wrapped = "signal.raise_signal(signal.SIGINT)"
    code = STRIKE.format(module="tidings.bus.bus", arguments=["sub", "tidings://127.0.0.1:9", "/a"]).replace(
        wrapped,
        f"""
            class Named:
                def __set_name__(self, owner, name):
                    {wrapped}
            class Owner:
                named = Named()
""".strip(),
    )
    done = run(code)
    assert (done.returncode, done.stderr) == (130, "")
