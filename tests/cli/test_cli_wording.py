"""What users read: help without Python's types, and errors that name the flag or the variable and say what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from command import process_of_tidings, tidings
from command_docs import commands_of
from tidings.cli.main import app

GOLDEN = Path(__file__).parents[1] / "protection" / "golden" / "help"
NOWHERE = "tidings://127.0.0.1:9"
SECURE = "tidings+tls://127.0.0.1:9"
COMMANDS = commands_of(get_command(app))
VERBS = sorted(COMMANDS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_no_python_types_and_no_ranges(verb: str) -> None:
    text = (GOLDEN / f"tidings-{verb.replace(' ', '-')}.txt").read_text(encoding="utf-8")
    assert not re.search(r"<(bool|int|float|str|path|list)|x<=|x>=|922337|env var", text)
    assert "[[" not in text and "{" not in text, "Typer brackets arguments once more"


@pytest.mark.parametrize("verb", VERBS)
def test_short_flags_mean_one_thing(verb: str) -> None:
    meant = {"-a": "--attribute", "-t": "--topic", "-n": "--count", "-o": "--out", "-q": "--quiet"}
    for param in COMMANDS[verb].params:
        for short in set(param.opts) & meant.keys():
            assert param.hidden or meant[short] in param.opts


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["broker", "--delta", "99"], "--delta: expected a whole number from 0 to 32, not '99'"),
        (["broker", "--delta", "x"], "--delta: expected a whole number from 0 to 32, not 'x'"),
        (["broker", "--mode", "x"], "--mode: expected one of best-effort, guaranteed, epidemic, not 'x'"),
        (["sub", NOWHERE, "/a", "--count", "0"], "--count: expected a whole number of at least 1, not '0'"),
        (["sub", NOWHERE, "/a", "--timeout", "nan"], "--timeout: expected a number of at least 0, not 'nan'"),
        (
            ["sim", "x", "-o", "y", "--seed", "1" * 30],
            "--seed: expected a whole number from -2^63 to 2^63 - 1",
        ),
        (["pub", "a", "b"], "URL: 'a' is not a broker's URL: it must start with one of tidings://"),
        (["sub", NOWHERE, "/a/#"], "TOPIC: '/a/#': '#' is not a wildcard here; write '/a/**'"),
        (["sub", NOWHERE, "/b", "/a/+/c"], "TOPIC: '/a/+/c': '+' is not a wildcard here; write '/a/*/c'"),
        (["record", NOWHERE, "/a/#", "--archive", "x"], "write '/a/**'"),
        (["get", "x", "-t", "/a/+"], "--topic: '/a/+': '+' is not a wildcard here; write '/a/*'"),
        (["broker", "--archive", "x", "--archive-topic", "/#"], "--archive-topic: '/#'"),
        (["sequencer", "--topic", "/a/#"], "--topic: '/a/#'"),
        (["up", "--order", "causal", "--order-topic", "/a/#"], "--order-topic: '/a/#'"),
        (["sim", "x", "--out", ""], "--out: must not be empty"),
        (["pub", NOWHERE, "/a", "--name", ""], "--name: must not be empty"),
        (
            ["pub", NOWHERE, "/a", "--name", "x" * 300],
            "--name: a name has at most 255 characters, this one has 300",
        ),
        (["replay", "x", NOWHERE, "--once", "x" * 300], "--once: a name has at most 255 characters"),
        (
            ["sub", NOWHERE, "/a", "--tls-ca", "x"],
            f"--tls-ca: {NOWHERE} is not encrypted; use tidings+tls://",
        ),
        (
            ["sub", SECURE, "/a", "--tls-ca", "/no/ca"],
            "--tls-ca: cannot use the certificates in /no/ca: no such file",
        ),
        (["sub", SECURE, "/a", "--token-file", "/no/t"], "--token-file: cannot read /no/t: no such file"),
        (["pub", NOWHERE, "/a", "--file", "/no/f"], "--file: cannot read /no/f: no such file"),
        (["broker", "--tls-cert", "/no/c"], "--tls-cert: TLS needs both --tls-cert and --tls-key"),
        (
            ["broker", "--tls-cert", "/no/c", "--tls-key", "/no/k"],
            "--tls-cert: cannot use certificate /no/c with",
        ),
        (["top", "mqtt://127.0.0.1:9"], "URL: shows tidings' own brokers and sequencers only, not mqtt://"),
        (["up", "--scenario", "x", "--brokers", "3"], "--brokers: not allowed with --scenario"),
        (["get", "x", "--end", "soon"], "--end: expected a number, earliest, latest, or -N"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_a_mistake_names_the_flag(arguments: list[str], told: str) -> None:
    done = tidings(*arguments)
    assert done.returncode == 2, done
    assert told in done.stderr
    assert "Value error" not in done.stderr and "Input should" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["pub", "URL", "/a", "x"],
        ["sub", "URL", "/a"],
        ["record", "URL", "/a", "--archive", "archive"],
        ["status", "URL"],
        ["top", "URL"],
        ["bench", "URL"],
        ["replay", "archive", "URL"],
        ["sequencer", "--service", "URL"],
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize(
    "url", ["nonsense", "tidings://:99", "tidings://host:port", "mqtt://x:y:z", "http://x"]
)
def test_a_malformed_url_is_bad_usage(arguments: list[str], url: str) -> None:
    done = tidings(*(url if word == "URL" else word for word in arguments))
    assert done.returncode == 2, done
    assert "is not a" in done.stderr


def test_a_malformed_url_of_an_archive_is_bad_usage() -> None:
    assert tidings("get", "http://x").returncode == tidings("get", "tidings://x:y").returncode == 2


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"TIDINGS_SUB_COUNT": "few"}, "TIDINGS_SUB_COUNT: expected a whole number of at least 1, not 'few'"),
        ({"TIDINGS_TLS_CA": "/no/ca"}, f"TIDINGS_TLS_CA: {NOWHERE} is not encrypted"),
        ({"TIDINGS_TOKEN_FILE": "/no/t"}, "TIDINGS_TOKEN_FILE: cannot read /no/t"),
        ({"TIDINGS_SUB_NAME": "x" * 300}, "TIDINGS_SUB_NAME: a name has at most 255"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_in_the_environment_names_the_variable(variables: dict[str, str], told: str) -> None:
    done = process_of_tidings("sub", NOWHERE, "/a", **variables)
    assert (done.returncode, done.stderr.split(" (see")[0].startswith(f"tidings: {told}")) == (2, True), done


def test_a_record_that_cannot_begin_leaves_no_directory(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    assert tidings("record", NOWHERE, "--archive", kept / "new" / "archive").returncode == 4
    assert tidings("record", NOWHERE, "--archive", kept).returncode == 4
    assert list(tmp_path.iterdir()) == [kept], "what was there before stays"
    assert not (kept / "new").exists()


SCENARIO = """
seed = 3
duration_s = 1.0
[overlay]
mode = "best-effort"
shape = { kind = "chain", brokers = 2 }
[[publisher]]
name = "p"
at = "b0"
rate_hz = 5.0
topics = ["/a"]
[[subscriber]]
name = "s"
at = "b1"
topics = ["/a"]
"""


def test_a_scenario_from_stdin(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(SCENARIO, encoding="utf-8")
    done = process_of_tidings("sim", "-", "--out", tmp_path / "piped", given=SCENARIO)
    assert done.returncode == 0, done.stderr
    assert tidings("sim", file, "--out", tmp_path / "read").returncode == 0
    hashes = {line for name in ("piped", "read") for line in hash_lines(tmp_path / name)}
    assert len(hashes) == 1


def hash_lines(directory: Path) -> list[str]:
    text = (directory / "summary.json").read_text(encoding="utf-8")
    return re.findall(r'"trace_sha256": "\w+"', text)


def test_a_plan_from_stdin() -> None:
    done = process_of_tidings("plan", "-", "--json", given="client,topic\na,/x\nb,/x\na,/y\nb,/y\n")
    assert done.returncode == 0, done.stderr
    assert '"topics": 2' in done.stdout


def test_a_file_of_options_from_stdin() -> None:
    done = process_of_tidings("broker", "--config", "-", given='listen = "here:there"\n')
    assert done.returncode == 2 and "'here:there' is not an address" in done.stderr
