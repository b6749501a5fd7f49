"""`tidings plan`: what it prints and writes, that sequencers take its layout, and one line for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidings.cli.main import run
from tidings.cli.shared.sequencer_options import SequencerOptions
from tidings.cli.shared.sequencer_settings import sequencer_settings
from tidings.spark.plan.files import GROUPS, SIZES

ROWS = [
    ("a", "/t1", "east"),
    ("a", "/t2", "east"),
    ("b", "/t1", "east"),
    ("b", "/t2", "east"),
    ("c", "/t10", "west"),
    ("c", "/x/**", "west"),
    ("d", "/t10", "west"),
    ("d", "/x/**", "west"),
    ("e", "/x/y", "west"),
]
PLACED = """
[[site]]
name = "east"
node = "10.0.0.1:7000"
standby = "10.0.0.2"
witness = "10.0.0.3"
clients = ["a", "b"]

[[site]]
name = "west"
node = "10.0.1.1"
clients = ["c", "d", "e"]
"""


def csv(directory: Path, rows: list[tuple[str, ...]] = ROWS, heading: str = "client,topic,site") -> Path:
    path = directory / "table.csv"
    path.write_text("\n".join([heading, *(",".join(row) for row in rows)]) + "\n")
    return path


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert run(["plan", "--json", *map(str, arguments)]) == 0, capsys.readouterr()
    out, err = capsys.readouterr()
    assert not err
    return json.loads(out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that says why."""
    assert run(["plan", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("tidings: ") and err.count("\n") == 1
    return err.removeprefix("tidings: ").rstrip("\n")


# --- What comes out


def test_tables_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(csv(tmp_path))]) == 0
    out, err = capsys.readouterr()
    assert not err
    for text in ("total (threshold 2)", "p99", "planned", "identifiers", "popularity", "paper", "/x/**"):
        assert text in out


def test_the_same_table_in_every_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clients, topics, sites = map(list, zip(*ROWS, strict=True))
    table = pa.table({"client": clients, "topic": topics, "site": sites})
    pq.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "parts").mkdir()
    pq.write_table(table.slice(0, 4), tmp_path / "parts" / "part-0.parquet")
    pq.write_table(table.slice(4), tmp_path / "parts" / "part-1.parquet")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    listed = {client: ([t for c, t, _ in ROWS if c == client], site) for client, _, site in ROWS}
    lines = [{"subscriber": name, "topics": of, "site": site} for name, (of, site) in listed.items()]
    (tmp_path / "listed.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    expected = planned(capsys, csv(tmp_path))
    for name in ("rows.parquet", "parts", "rows.jsonl", "listed.ndjson"):
        found = planned(capsys, tmp_path / name)
        assert {**found, "source": ""} == {**expected, "source": ""}, name


def test_numbers_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, csv(tmp_path))
    assert found["order"] == "total"
    assert found["clients"] == 5
    assert found["sites"] == {"east": 2, "west": 3}
    # /t1 with /t2; /t10, /x/y and /x/** with each other, since c and d have a pattern that /x/y falls under.
    assert found["entries_per_stamp"]["topics"] == {
        "minimum": 1,
        "mean": (1 + 1 + 2 + 2 + 2) / 5,
        "p50": 2,
        "p90": 2,
        "p99": 2,
        "maximum": 2,
    }
    assert found["entries_per_stamp"]["publications"]["mean"] == pytest.approx((2 + 2 + 4 + 6 + 4) / 11)
    assert found["placements"]["planned"]["local"] == 1.0
    assert found["placements"]["planned"]["crossings"] <= found["placements"]["identifiers"]["crossings"]
    assert {server["site"]: {*server["topics"]} for server in found["servers"]} == {
        "east": {"/t1", "/t2"},
        "west": {"/t10", "/x/y", "/x/**"},
    }


def test_causal_order_has_threshold_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a", "/t1"), ("a", "/t2")]
    path = csv(tmp_path, rows, "client,topic")
    causal = planned(capsys, path, "--causal")
    assert causal == planned(capsys, path, "--threshold", 1)
    assert (causal["order"], causal["entries_per_stamp"]["topics"]["maximum"]) == ("causal", 1)
    assert planned(capsys, path)["entries_per_stamp"]["topics"]["maximum"] == 0
    assert "must be 1 with --causal" in refused(capsys, path, "--causal", "--threshold", 2)


def test_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "weights.csv"
    weights.write_text("topic,weight\n/t1,3\n/x/z,1\n/nobody,5\n")
    found = planned(capsys, csv(tmp_path), "--weights", weights)
    assert found["weighted_by"] == "publications"
    assert found["entries_per_stamp"]["publications"]["mean"] == (3 * 1 + 1 * 2) / 4
    assert "no subscriber: 1" in found["notes"][0]


# --- What is written


def test_sequencers_take_the_layout_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = tmp_path / "sites.toml"
    sites.write_text(PLACED)
    path = csv(tmp_path, [row[:2] for row in ROWS], "client,topic")
    found = planned(capsys, path, "--sites", sites, "--out", tmp_path / "out", "--causal")
    nodes = {"east": "10.0.0.1:7000", "east-standby": "10.0.0.2:7500", "east-witness": "10.0.0.3:7500"}
    nodes["west"] = "10.0.1.1:7500"
    for name, address in nodes.items():
        flags = SequencerOptions(name=name, layout=tmp_path / "out" / "layout.toml")
        taken = sequencer_settings(flags)
        assert str(taken.listen) == address
        assert taken.layout.causal
        assert [(place.name, list(place.topics)) for place in taken.layout.servers] == [
            (server["site"], server["topics"]) for server in found["servers"]
        ]
    assert taken.layout.replicas("east") == ("east", "east-standby")


@pytest.mark.parametrize("heading", ["client,topic,site", "client,topic"])
def test_a_layout_without_addresses_is_one_for_this_machine(
    heading: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row[: heading.count(",") + 1] for row in ROWS]
    found = planned(capsys, csv(tmp_path, rows, heading), "--out", tmp_path / "out", "--rest")
    text = (tmp_path / "out" / "layout.toml").read_text()
    assert "made up" in text.splitlines()[0]
    name = found["servers"][-1]["site"]
    taken = sequencer_settings(SequencerOptions(name=name, layout=tmp_path / "out" / "layout.toml"))
    assert taken.listen.is_loopback
    assert not taken.layout.causal
    assert taken.layout.topics[-1] == "/**"


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    found = planned(capsys, csv(tmp_path), "--out", out)
    assert {*found["written"]} == {path.name for path in out.iterdir()}
    groups, sizes = pq.read_table(out / "groups.parquet"), pq.read_table(out / "sizes.parquet")
    assert groups.schema.equals(GROUPS) and sizes.schema.equals(SIZES)
    by_topic = {row["topic"]: row for row in groups.to_pylist()}
    assert by_topic["/t1"]["group"] == ["/t2"]
    assert {*by_topic["/x/y"]["group"]} == {"/t10", "/x/**"}
    assert by_topic["/x/y"]["subscribers"] == 3
    assert groups.column("topic").to_pylist() == [t for server in found["servers"] for t in server["topics"]]
    assert sizes.to_pylist() == [
        {"entries": 1, "topics": 2, "weight": 4.0},
        {"entries": 2, "topics": 3, "weight": 7.0},
    ]
    written = json.loads((out / "plan.json").read_text())
    assert written == {key: value for key, value in found.items() if key != "written"}
    assert (out / "sizes.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "sizes.svg").read_text()
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    planned(capsys, csv(tmp_path), "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(("name", "text"), [("t.csv", "client,topic\n"), ("t.jsonl", "")])
def test_an_empty_table_is_a_plan_of_nothing(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    found = planned(capsys, tmp_path / name, "--out", tmp_path / "out")
    assert found["clients"] == found["topics"] == 0
    assert found["notes"] == ["no subscriptions: there is nothing to plan"]
    assert found["written"] == ["groups.parquet", "sizes.parquet", "plan.json"]
    assert pq.read_table(tmp_path / "out" / "groups.parquet").num_rows == 0
    assert run(["plan", str(tmp_path / name)]) == 0
    assert "nothing to plan" in capsys.readouterr().out


# --- Mistakes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("client,theme\na,/x\n", "missing column topic; the columns are client, theme"),
        ("who,theme\na,/x\n", "missing column client and column topic; the columns are who, theme"),
        ("client,topic\na,/x\nb,x\n", "row 2: topic pattern 'x' must start with '/'"),
        ("client,topic\na,/x/**/y\n", "row 1: topic pattern '/x/**/y': '*' must be a whole level"),
        ("client,topic,site\na,/x,east\nb,/x,\n", None),
        (
            "client,topic,site\na,/x,east\nb,/x,\nc,/x,west\n",
            "row 2: client 'b' has no site",
        ),
        (
            "client,topic,site\na,/x,east\na,/y,west\n",
            "row 2: client 'a' is at site 'west', but an earlier row says 'east'",
        ),
        ("client,topic\na,/x,too,many\n", "cannot read"),
        ("client,topic\na,/x\n,/b\n", "row 2 has no client"),
        ("client,topic\na,/x\nb,\n", "row 2 has no topic"),
        ('client,topics\na,"/t,/u"\n', "column 'topics' is string, not a list: write one row per topic"),
        ("client,topic,topics\na,/x,/y\n", "has the columns 'topic' and 'topics': keep one of them"),
        ("subscriber,client,topic\na,b,/x\n", "has the columns 'subscriber' and 'client'"),
        ("client,client,topic\na,b,/x\n", "has the columns 'client' and 'client'"),
        ("client,topic,site,site\na,/x,east,west\n", "has the columns 'site' and 'site'"),
        ("", "cannot read"),
    ],
)
def test_tables_that_are_wrong(
    text: str, reason: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    if reason is None:
        assert planned(capsys, path)["sites"] == {"east": 2}
        return
    message = refused(capsys, path)
    assert reason in message
    assert str(path) in message


def test_nulls_name_their_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text('{"client": "a", "topics": ["/x"]}\n{"client": "b", "topics": ["/x", null]}\n')
    assert "row 2 has no topic" in refused(capsys, path)
    path.write_text('{"client": "a", "topic": "/x"}\n{"topic": "/x"}\n')
    assert "row 2 has no client" in refused(capsys, path)
    path.write_text('{"client": {"a": 1}, "topic": "/x"}\n')
    assert "column 'client' is struct" in refused(capsys, path)


def test_an_empty_client_and_topics_that_are_no_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text('{"client": "a", "topics": ["/x"]}\n{"client": "", "topics": ["/x"]}\n')
    assert "row 2 has no client" in refused(capsys, path)
    path.write_text('{"client": "a", "topics": "/x"}\n')
    assert "column 'topics' is string, not a list" in refused(capsys, path)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.csv", b"\xff\xfeclient,topic\n", "the names of the columns are not UTF-8"),
        ("t.csv", b"client,topic\na,/x\ncaf\xe9,/x\n", "row 2: column 'client' is not UTF-8"),
        ("t.jsonl", b'{"client": "a", "topic": "/caf\xe9"}\n', "row 1: column 'topic' is not UTF-8"),
        ("t.jsonl", b'{"client": "a", "topics": ["/x", "/\xe9"]}\n', "row 1: column 'topics' is not UTF-8"),
        ("t.jsonl", b'{"\xe9": "a", "topic": "/x"}\n', "the names of the columns are not UTF-8"),
    ],
)
def test_text_that_is_not_utf8(
    name: str, content: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert refused(capsys, path) == f"{path}: {reason}"


def test_text_that_is_not_utf8_in_parquet_and_in_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.parquet"
    clients = pa.array([b"a", b"caf\xe9"]).view(pa.string())
    pq.write_table(pa.table({"client": clients, "topic": ["/x", "/x"]}), path)
    assert refused(capsys, path) == f"{path}: row 2: column 'client' is not UTF-8"
    path = tmp_path / "weights.csv"
    path.write_bytes(b"topic,weight\n/t\xe9,1\n")
    reason = refused(capsys, csv(tmp_path), "--weights", path)
    assert reason == f"{path}: row 1: column 'topic' is not UTF-8"


def test_a_client_at_one_site_in_the_table_and_at_another_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = tmp_path / "sites.toml"
    sites.write_text(PLACED)
    rows = [("a", "/t1", "east"), ("b", "/t1", ""), ("c", "/t1", "west")]
    assert planned(capsys, csv(tmp_path, rows), "--sites", sites)["sites"] == {"east": 2, "west": 1}
    reason = refused(capsys, csv(tmp_path, [*rows, ("d", "/t2", "east")]), "--sites", sites)
    assert "row 4: client 'd' is at site 'east', but the --sites file says 'west'" in reason


@pytest.mark.parametrize("name", ["table.xlsx", "table", "missing.csv", "nats://127.0.0.1:1"])
def test_files_that_are_no_tables(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not name.startswith(("missing", "nats")):
        (tmp_path / name).write_bytes(b"\0")
        name = str(tmp_path / name)
    assert name in refused(capsys, name)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[[site]]\nname = "north"', "row 1: site 'east' is not listed; known sites: north"),
        ("", "site"),
        ('[[site]]\nname = "east"\nport = 7', "port"),
        ('[[site]]\nname = "east"\nnode = "x:y"', "site 'east': node: 'x:y' is not an address"),
        ('[[site]]\nname = "east"\nstandby = "x:1"', "site 'east': give both a standby and a witness"),
        ('[[site]]\nname = "east"\n[[site]]\nname = "east"', "site 'east' is listed twice"),
        (
            '[[site]]\nname = "a"\nclients = ["x"]\n[[site]]\nname = "b"\nclients = ["x"]',
            "client 'x' is listed at 'a' and at 'b'",
        ),
        ("[[site]", "sites.toml"),
    ],
)
def test_sites_that_are_wrong(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(text)
    assert reason in refused(capsys, csv(tmp_path), "--sites", path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("topic,share\n/t1,1\n", "missing column weight; the columns are topic, share"),
        ("topic,weight\n/t1,1\n/t2,-1\n", "row 2: weight -1.0 of '/t2' must be a number from 0"),
        ("topic,weight\n/t1,much\n", "column 'weight' is string, not numbers"),
        ("topic,weight\nt1,1\n", "weights: topic 't1' must start with '/'"),
        ("topic,weight,weight\n/t1,1,2\n", "has the columns 'weight' and 'weight'"),
    ],
)
def test_weights_that_are_wrong(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.csv"
    path.write_text(text)
    assert reason in refused(capsys, csv(tmp_path), "--weights", path)
