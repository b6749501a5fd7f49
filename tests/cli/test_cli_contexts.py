"""Named contexts, TIDINGS_URL, and which broker a command without a URL uses."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Annotated

import pytest
import typer
import typer.main

from command import tidings
from tidings.cli.shared.command_class import Verb
from tidings.cli.shared.connection_choice import is_left_out, with_context
from tidings.cli.shared.contexts import ContextFile, SavedContext, contexts_path, load_contexts, save_contexts

NEVER = "tidings://127.0.0.1:9"
OTHER = "tidings://127.0.0.1:19"
DEFAULT = "tidings://127.0.0.1:7400"


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of contexts; nothing of the user's own environment is left."""
    for name in [name for name in os.environ if name.startswith("TIDINGS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TIDINGS_CONFIG", str(tmp_path / "new" / "contexts.toml"))
    return tmp_path / "new" / "contexts.toml"


def well(*arguments: object) -> str:
    done = tidings(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(*arguments: object, code: int = 2) -> str:
    done: subprocess.CompletedProcess[str] = tidings(*arguments)
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith("tidings: ") and done.stderr.count("\n") == 1
    return done.stderr.removeprefix("tidings: ").rstrip("\n")


def used(*arguments: object) -> dict[str, object]:
    """What a command without a URL would use."""
    found: dict[str, object] = json.loads(well("context", "show", *arguments, "--json"))
    return found


# --- Adding, listing, removing


def test_contexts_are_added_used_listed_and_removed(path: Path, tmp_path: Path) -> None:
    assert "no contexts" in well("context", "list")
    token = tmp_path / "token"
    token.write_text("secret\n")
    assert "the current context" in well("context", "add", "prod", NEVER, "--token-file", token)
    assert well("context", "add", "test", OTHER, "--connect-timeout", 2) == "added test\n"
    assert json.loads(well("context", "list", "--json")) == [
        {"name": "prod", "current": True, "url": NEVER, "token_file": str(token)},
        {"name": "test", "current": False, "url": OTHER, "connect_timeout": 2.0},
    ]
    assert "prod" in well("context", "list") and "test" in well("context", "list")
    assert json.loads(well("context", "use", "test", "--json")) == {"current": "test"}
    assert used() == {"from": "context test", "url": OTHER, "connect_timeout": 2.0}
    assert used("prod")["url"] == NEVER
    assert json.loads(well("context", "remove", "test", "--json")) == {"removed": "test", "current": None}
    assert used() == {"from": "default", "url": DEFAULT}
    assert "secret" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_context_can_be_replaced_and_used_at_once() -> None:
    well("context", "add", "prod", NEVER)
    assert "--force" in refused("context", "add", "prod", OTHER)
    well("context", "add", "test", OTHER, "--use")
    assert used()["url"] == OTHER
    well("context", "add", "prod", OTHER, "--force")
    assert used("prod")["url"] == OTHER


def test_paths_are_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("secret")
    monkeypatch.chdir(tmp_path)
    well("context", "add", "prod", NEVER, "--token-file", "token")
    assert used()["token_file"] == str(tmp_path / "token")


def test_the_file_survives_odd_values_and_keeps_a_link(path: Path, tmp_path: Path) -> None:
    odd = SavedContext(url='nats://a:"\\\x01\x7fé@h:1', token_file='a "b"\n\tc', connect_timeout=0.5)
    real = tmp_path / "real.toml"
    real.touch()
    path.parent.mkdir()
    path.symlink_to(real)
    written = ContextFile(current="a.b", contexts={"a.b": odd, "c": SavedContext(url=NEVER)})
    save_contexts(path, written)
    assert load_contexts(path) == written == load_contexts(real)
    assert path.is_symlink()


def test_passwords_are_not_shown() -> None:
    well("context", "add", "old", "nats://me:secret@127.0.0.1:4222")
    for shown in (well("context", "list"), well("context", "list", "--json"), well("context", "show")):
        assert "secret" not in shown and "me:***@" in shown


def test_where_the_file_is(tmp_path: Path) -> None:
    assert contexts_path({"TIDINGS_CONFIG": "x/y", "XDG_CONFIG_HOME": "/z"}) == Path("x/y")
    assert contexts_path({"XDG_CONFIG_HOME": "/z"}) == Path("/z/tidings/contexts.toml")
    home = Path("~/.config/tidings/contexts.toml").expanduser()
    assert contexts_path({}) == contexts_path({"XDG_CONFIG_HOME": "relative"}) == home


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "a b", NEVER], "NAME: 'a b' must have"),
        (["add", "", NEVER], "NAME"),
        (["add", "prod", "localhost:7400"], "URL: 'localhost:7400' is not a broker's URL"),
        (["add", "prod", "tidings://h\udc80"], "URL"),
        (["add", "prod", NEVER, "--token-file", "/no/such"], "--token-file: cannot read /no/such"),
        (["add", "prod", NEVER, "--token-file", "-"], "--token-file: a context needs a file"),
        (["add", "prod", NEVER, "--tls-ca", "/dev/null"], "--tls-ca: tidings://127.0.0.1:9 is not encrypted"),
        (["add", "prod", NEVER, "--connect-timeout", "0"], "--connect-timeout: expected a number"),
        (["add", "prod"], "missing argument 'URL'"),
        (["use", "prod"], "unknown context 'prod'; there are none yet"),
        (["remove", "prod"], "unknown context 'prod'"),
        (["show", "prod"], "unknown context 'prod'"),
        (["lsit"], "no such command 'lsit'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_contexts(arguments: list[str], told: str, path: Path) -> None:
    assert told in refused("context", *arguments)
    assert not path.exists()


def test_an_unknown_context_tells_the_nearest_known_ones() -> None:
    for name in ("production", "produce", "zebra"):
        well("context", "add", name, NEVER)
    assert refused("sub", "/a", "--context", "producton").startswith(
        "unknown context 'producton'; did you mean 'production' or 'produce'?"
    )
    assert refused("status", "--context", "x") == "unknown context 'x'; known: production, produce, zebra"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("contexts = ", "not valid TOML"),
        ("contexts = 3", "contexts"),
        ("[contexts.prod]\nurl = 3\n", "contexts.prod.url"),
        ("[contexts.prod]\n", "missing key 'url'"),
        ("[contexts.prod]\nurl = 'x'\ntoken = 'secret'\n", "unknown key 'token'"),
        ("curent = 'prod'\n", "did you mean 'current'?"),
    ],
    ids=["toml", "table", "type", "missing", "token", "key"],
)
def test_a_damaged_file_is_one_line_with_its_path(text: str, told: str, path: Path) -> None:
    path.parent.mkdir()
    path.write_text(text)
    for arguments in (["sub", "/a"], ["context", "list"], ["context", "add", "x", NEVER]):
        said = refused(*arguments)
        assert said.startswith(f"{path}: ") and told in said
    assert path.read_text() == text
    assert "connection refused" in refused("sub", NEVER, "/a", code=4), "with a URL, nobody reads the file"


def test_a_file_that_is_no_text_or_no_file(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe\x00")
    assert str(path) in refused("context", "list")
    path.unlink()
    path.mkdir()
    assert str(path) in refused("context", "list")


def test_a_file_that_cannot_be_written(path: Path, tmp_path: Path) -> None:
    (tmp_path / "new").touch()  # where its directory should be
    assert refused("context", "add", "x", NEVER).startswith(f"cannot write {path}: ")


# --- Which broker a command uses


def asked(*arguments: object) -> str:
    """The broker that a command without a URL tries to reach."""
    said = refused(*arguments, code=4)
    return said.removeprefix("cannot reach ").removesuffix(": connection refused")


def test_a_flag_beats_the_variable_beats_the_contexts_beat_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number, name in enumerate(("flag", "variable", "current"), 21):
        well("context", "add", name, f"tidings://127.0.0.1:{number}")
    well("context", "use", "current")
    assert asked("status") == "tidings://127.0.0.1:23"
    monkeypatch.setenv("TIDINGS_CONTEXT", "variable")
    assert asked("status") == "tidings://127.0.0.1:22"
    monkeypatch.setenv("TIDINGS_URL", NEVER)
    assert asked("status") == NEVER
    assert asked("status", "--context", "flag") == "tidings://127.0.0.1:21"
    assert asked("status", OTHER) == OTHER
    assert used()["from"] == "TIDINGS_URL"


def test_without_anything_it_is_the_broker_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert used() == {"from": "default", "url": DEFAULT}


@pytest.mark.parametrize(
    "arguments",
    [
        ["pub", "/a", "hello"],
        ["pub", "/a"],
        ["pub", "-a", "size=3", "/a", "-n", "2"],
        ["sub", "/a", "/b/**"],
        ["sub", "--where", "x > 3", "/a"],
        ["sub", "--", "/a"],
        ["status"],
        ["subscriptions"],
        ["cancel", "billing", "--yes"],
        ["dead", "billing"],
        ["dead", "/dead/billing"],
        ["record", "/a", "--archive", "x"],
        ["record", "--archive", "x"],
        ["get"],
        ["top", "-n", "1"],
    ],
    ids=" ".join,
)
def test_every_verb_does_without_a_url(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDINGS_URL", NEVER)
    done = tidings(*arguments)
    assert done.returncode == 4
    assert f"cannot reach {NEVER}: connection refused" in done.stderr
    well("context", "add", "other", OTHER)
    done = tidings(*arguments[:1], "--context", "other", *arguments[1:])
    assert f"cannot reach {OTHER}: connection refused" in done.stderr


def test_bench_and_plan_use_a_context_only_if_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_URL", NEVER)
    assert "missing argument 'SUBSCRIPTIONS'" in refused("plan")
    well("context", "add", "other", OTHER)
    assert asked("plan", "--context", "other") == OTHER
    assert asked("bench", "--context", "other") == OTHER


def test_a_replay_has_its_url_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "missing argument 'ARCHIVE'" in refused("replay")
    monkeypatch.setenv("TIDINGS_URL", NEVER)
    assert asked("replay", OTHER) == OTHER, "that is the archive"


def test_a_url_and_a_context_exclude_each_other() -> None:
    well("context", "add", "other", OTHER)
    assert "--context: not allowed with a URL" in refused("sub", NEVER, "/a", "--context", "other")


def test_the_contexts_flags_are_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("secret")
    well("context", "add", "prod", NEVER, "--token-file", tmp_path / "token")
    (tmp_path / "token").unlink()
    said = refused("sub", "/a")
    assert said.startswith(f"--token-file of context prod: cannot read {tmp_path / 'token'}: no such file")
    assert "cannot read /other" in refused("sub", "/a", "--token-file", "/other")
    monkeypatch.setenv("TIDINGS_TOKEN_FILE", "/from/environment")
    assert refused("sub", "/a").startswith("TIDINGS_TOKEN_FILE: cannot read /from/environment")
    monkeypatch.delenv("TIDINGS_TOKEN_FILE")
    assert asked("sub", NEVER, "/a") == NEVER, "a URL of its own comes without the context's token"


def test_values_of_the_file_are_checked_like_flags(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    path.write_text(f"current = 'x'\n[contexts.x]\nurl = '{NEVER}'\nconnect_timeout = 0.0\n")
    assert refused("status").startswith("--connect-timeout of context x: expected a number")
    path.write_text("current = 'x'\n[contexts.x]\nurl = 'localhost'\n")
    assert refused("status").startswith("context x: 'localhost' is not a broker's URL")
    path.write_text(f"current = 'y'\n[contexts.x]\nurl = '{NEVER}'\n")
    assert refused("status") == f"{path}: unknown context 'y'; known: x"
    monkeypatch.setenv("TIDINGS_CONTEXT", "z")
    assert refused("status") == "TIDINGS_CONTEXT: unknown context 'z'; known: x"


def test_a_bad_variable_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDINGS_URL", "localhost")
    assert refused("sub", "/a").startswith("TIDINGS_URL: 'localhost' is not a broker's URL")


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        (("/a", None), True),
        (("/a", "payload"), True),
        ((None, None), True),
        (("billing", None), True),
        (("billing", ()), True),
        (("localhost:7400", "/a"), False),
        (("tidings://h", None), False),
        (("tidings://h", "/a"), False),
    ],
)
def test_when_a_url_is_missing_before_other_arguments(given: tuple[object, object], left_out: bool) -> None:
    assert is_left_out(["url", "topic"], dict(zip(("url", "topic"), given, strict=True))) is left_out


def test_a_directory_is_not_a_topic(tmp_path: Path) -> None:
    arguments = ["archive", "topics"]
    assert not is_left_out(arguments, {"archive": str(tmp_path), "topics": ("/a",)})
    assert not is_left_out(arguments, {"archive": "relative", "topics": ()})
    assert is_left_out(arguments, {"archive": "/no/such/**", "topics": ()})
    assert is_left_out(arguments, {"archive": None, "topics": ()})


def test_a_verb_with_required_flags_takes_a_context() -> None:
    def serve(
        url: Annotated[str, typer.Argument()],
        topic: Annotated[str, typer.Argument()],
        command: Annotated[str, typer.Option("--exec")],
        json: Annotated[bool, typer.Option("--json")] = False,
    ) -> None:
        served.append((url, topic, command, json))

    served: list[tuple[str, str, str, bool]] = []
    app = typer.Typer()
    app.command(cls=Verb)(with_context(serve))
    app.command(name="other")(lambda: None)
    well("context", "add", "prod", NEVER)
    command = typer.main.get_command(app)
    command.main(["serve", "/a", "--exec", "x", "--context", "prod"], standalone_mode=False)
    command.main(["serve", OTHER, "/a", "--exec", "x", "--json"], standalone_mode=False)
    assert served == [(NEVER, "/a", "x", False), (OTHER, "/a", "x", True)]


def test_help_needs_no_context(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    path.write_text("damaged")
    monkeypatch.setenv("TIDINGS_CONTEXT", "unknown")
    for arguments in (["sub", "--help"], ["status", "-h"], ["context", "--help"]):
        done = tidings(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage" in done.stdout
