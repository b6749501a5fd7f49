"""Every mistake of a user is one line on stderr and the right exit code; never a traceback."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from command import process_of_tidings, tidings
from tidings.cli.main import app, run

NOWHERE = "tidings://127.0.0.1:9"
HEAD = '[overlay]\nmode = "best-effort"\n'
CLIENTS = '[[publisher]]\nname = "p"\nat = "b0"\n[[subscriber]]\nname = "s"\nat = "b1"\n'


def refused(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("tidings: ")
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("durations_s = 3", ["unknown key 'durations_s'", "did you mean 'duration_s'?"]),
        (HEAD + 'edges = [["a", "b"], ["b", "c"], ["c", "a"]]', ["cyclic topology"]),
        (HEAD + 'edges = [["a", "b"], ["c", "d"]]', ["disconnected topology"]),
        (HEAD + CLIENTS + '[[publisher]]\nname = "p"\nat = "b0"', ["'p'"]),
        (HEAD + CLIENTS + 'filter = "size >> 10"', ["subscriber[0].filter", "position"]),
        (HEAD + CLIENTS.replace('"b0"', '"b0"\nattributes = { x = { kind = "decimal" } }'), ["'decimal'"]),
        (
            '[overlay]\nmode = "peers"\n',
            ['bad.toml: overlay.mode: "peers" is not yet available; available: "best-effort", "guaranteed"'],
        ),
        ("seed = ", ["not valid TOML"]),
    ],
    ids=["key", "cycle", "parts", "twice", "filter", "attribute type", "mode", "toml"],
)
def test_a_scenario_that_cannot_be_used(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    refused(tidings("sim", path, "--out", tmp_path / "out"), 2, *parts)
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["sim", "/no/such.toml", "--out", "x"], 2, "/no/such.toml"),
        (["sim"], 2, "missing argument 'SCENARIO'"),
        (["sim", "x.toml", "--out", "x", "--seed", "many"], 2, "--seed"),
        (["sim", "x.toml", "--out", "x", "--seed", str(2**63)], 2, "--seed"),
        (["smi"], 2, "Did you mean 'sim'?"),
        (["up", "/no/such.toml"], 2, "/no/such.toml"),
        (["up", "net.toml", "--brokers", "3"], 2, "--brokers"),
        (["broker", "--config", "/no/such.toml"], 2, "/no/such.toml"),
        (["broker", "--listen", "here:there"], 2, "'here:there' is not an address"),
        (["broker", "--listen", "0.0.0.0:0"], 4, "beyond loopback"),
        (["broker", "--token-file", "/no/token"], 2, "/no/token"),
        (["pub", NOWHERE, "/a", "x"], 4, "cannot reach tidings://127.0.0.1:9: connection refused"),
        (["pub", "tidings+udp://127.0.0.1:9", "/a", "x"], 4, "connection refused"),
        (["pub", "http://127.0.0.1", "/a", "x"], 2, "is not a broker's URL"),
        (["pub", "peers://127.0.0.1", "/a", "x"], 2, "not yet available"),
        (["pub", NOWHERE, "a", "x"], 2, "must start with '/'"),
        (["pub", NOWHERE, "/a/*", "x"], 2, "wildcard"),
        (["pub", NOWHERE, "/a", "-a", "size"], 2, "NAME=VALUE"),
        (["pub", NOWHERE, "/a", "-a", "topic=/b"], 2, "reserved"),
        (["pub", NOWHERE, "/a", "-a", "size=9223372036854775808"], 2, "64 bits"),
        (["pub", NOWHERE, "/a", "--file", "/no/such"], 2, "/no/such"),
        (["pub", NOWHERE, "/a", "x", "--file", "/no/such"], 2, "--file: not allowed with a payload"),
        (["sub", NOWHERE, "/a", "--where", "size >"], 2, "at position"),
        (["sub", NOWHERE, "/a/**/b"], 2, "topic pattern '/a/**/b'"),
        (["sub", NOWHERE, "/a", "--order", "partial"], 2, "--order"),
        (["sub", NOWHERE, "/a"], 4, "connection refused"),
        (["status", NOWHERE], 4, "connection refused"),
        (["bench", NOWHERE], 4, "connection refused"),
        (["bench", NOWHERE, "--mode", "guaranteed"], 2, "--mode"),
        (["bench", NOWHERE, "--brokers", "2"], 2, "--brokers"),
        (["bench", "--mode", "epidemic", "--transport", "udp"], 2, "--mode epidemic requires tcp"),
        (["bench", "--order", "causal"], 2, "--order"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_command_line_that_cannot_be_used(
    arguments: list[str], code: int, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(arguments)
    out, err = capsys.readouterr()
    refused(subprocess.CompletedProcess(arguments, found, out, err), code, part)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[overlay]\nmode = "peers"\n', 'overlay.mode: "peers" is not yet available'),
        ("[network]\nreorder = 0.5\n", "network.reorder: not available in real time"),
    ],
    ids=["mode", "key"],
)
def test_what_cannot_run_in_wall_time_is_told_with_its_file(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    assert run(["up", "--scenario", str(path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"tidings: {path}: {reason}")


def test_with_json_an_error_is_one_json_object() -> None:
    done = tidings("sub", NOWHERE, "/a", "--where", "size >> 10", "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert list(json.loads(done.stderr)) == ["error"]


def test_an_output_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "ok.toml"
    path.write_text(HEAD + CLIENTS, encoding="utf-8")
    refused(tidings("sim", path, "--out", tmp_path / "file" / "out"), 2, "file")


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
def test_a_port_in_use(kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        transport = "tcp" if kind == socket.SOCK_STREAM else "udp"
        done = tidings("broker", "--listen", f"127.0.0.1:{port}", "--transport", transport)
        refused(done, 4, f"cannot listen on 127.0.0.1:{port}: ")


def test_the_environment_goes_before_the_file_and_a_flag_before_both(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('listen = "from-file:x"', encoding="utf-8")
    refused(tidings("broker", "--config", config), 2, "from-file:x")
    refused(process_of_tidings("broker", "--config", config, TIDINGS_BROKER_LISTEN="env:x"), 2, "env:x")
    done = process_of_tidings(
        "broker", "--config", config, "--listen", "flag:x", TIDINGS_BROKER_LISTEN="env:x"
    )
    refused(done, 2, "flag:x")


def test_without_a_command_there_is_help_and_it_names_the_exit_codes() -> None:
    done = process_of_tidings()
    assert done.returncode == 2
    assert "Usage: tidings" in done.stdout
    assert done.stderr == ""
    told = process_of_tidings("--help")
    assert told.returncode == 0
    for word in ("Exit codes", "broker", "up", "pub", "sub", "status", "sim", "bench", "demo"):
        assert word in told.stdout


def test_the_version_is_a_flag_and_no_variable() -> None:
    done = process_of_tidings("--version")
    assert (done.returncode, done.stdout) == (0, "tidings 0.1.0\n")
    refused(process_of_tidings("sim", TIDINGS_VERSION="1"), 2, "missing argument 'SCENARIO'")


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "pyarrow", "scipy", "pyspark", "uvloop")
    script = (
        "import sys, tidings.cli.main as m; m.run(['--help']);"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stderr.strip() == "[]"


def test_the_manual_names_every_command_and_flag() -> None:
    docs = Path(__file__).parents[2] / "docs"
    pages = ("cli", "sweeps", "audits", "plans", "reproductions")
    manual = "\n".join((docs / f"{page}.md").read_text(encoding="utf-8") for page in pages)
    commands = get_command(app).commands  # type: ignore[attr-defined]
    missing = [
        f"{name} {flag}"
        for name, command in commands.items()
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        for flag in parameter.opts
        if flag.startswith("--") and f"`{flag}" not in manual
    ]
    assert missing == []
    assert [name for name in commands if f"## tidings {name}\n" not in manual] == []
