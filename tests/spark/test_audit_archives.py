"""Archives under audit: planted repetitions, disorder, disagreement and damage are found, in chunks of any size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tidings.cli import main
from tidings.core.errors import ArchiveError, PipelineError
from tidings.core.events.event import Event
from tidings.core.events.position import OrderPosition
from tidings.spark.audit.archive import audit_archives
from tidings.spark.audit.stages import HereStages
from tidings.storage.archive import Archive, ArchiveSettings


def event(name: str, *, ordered: bool = False, out_of_order: bool = False, topic: str = "/a") -> Event:
    """`p:3`, or `p~2:3` for incarnation 2."""
    source, sequence = name.split(":")
    base, _, incarnation = source.partition("~")
    made = Event(base, int(incarnation or 0), int(sequence), topic, 10, {}, b"")
    if ordered:
        made.__dict__["order"] = OrderPosition(topic=topic, number=1, after={})
    if out_of_order:
        made.__dict__["out_of_order"] = True
    return made


def archive(directory: Path, events: Sequence[Event]) -> Path:
    with Archive.open(directory, ArchiveSettings(segment_rows=5)) as opened:
        for made in events:
            opened.append([made], 20)
    return directory


def damaged(directory: Path) -> Path:
    segment = min((directory / "segments").glob("*.parquet"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    return directory


def found(paths: Sequence[Path], guarantees: Sequence[str] = (), chunk_rows: int = 3):
    audited = audit_archives(HereStages(), paths, guarantees, chunk_rows=chunk_rows)
    return audited, {verdict.guarantee: verdict for verdict in audited.verdicts}


def test_an_archive_in_order_holds_and_says_what_it_cannot_tell(tmp_path: Path) -> None:
    path = archive(tmp_path / "a", [event(f"{'pq'[n % 2]}:{n}") for n in range(13)])
    audited, verdicts = found([path])
    assert audited.holds
    assert audited.events == [13]
    assert list(verdicts) == ["intact", "exactly_once", "fifo"]
    assert list(audited.not_checked) == ["gap_free", "agreement", "causal_order", "total_order"]


def test_repetition_and_disorder_are_found_with_their_offsets(tmp_path: Path) -> None:
    names = ["p:1", "q:1", "p:2", "q:3", "p:1", "q:2", "p:4", "p~1:1", "p:5"]
    path = archive(tmp_path / "a", [event(name) for name in names])
    for chunk_rows in (1, 2, 100):
        audited, verdicts = found([path], chunk_rows=chunk_rows)
        assert not audited.holds
        (again,) = verdicts["exactly_once"].witnesses
        assert (again.events, again.positions) == (("p:1",), (0, 4))
        late, older_life = verdicts["fifo"].witnesses
        assert (late.events, late.positions) == (("q:3", "q:2"), (3, 5))
        assert (older_life.events, older_life.positions) == (("p~1:1", "p:5"), (7, 8))


def test_what_is_declared_out_of_order_is_set_aside_and_total_order_counts_by_topic(tmp_path: Path) -> None:
    events = [
        event("p:2", ordered=True, topic="/a"),
        event("p:1", ordered=True, topic="/b"),
        event("q:2"),
        event("q:1", out_of_order=True),
    ]
    path = archive(tmp_path / "a", events)
    assert found([path])[0].holds
    _, strict = found([path], ["fifo"])
    assert [witness.events for witness in strict["fifo"].witnesses] == [("p:2", "p:1")]


def test_a_name_with_a_tilde_is_not_taken_for_an_incarnation(tmp_path: Path) -> None:
    events = [event("p:5"), Event("p~1", 0, 3, "/a", 10, {}, b""), event("p:6"), event("p~1:3")]
    assert found([archive(tmp_path / "a", events)])[0].holds


def test_two_archives_that_disagree_are_told_apart(tmp_path: Path) -> None:
    def recorded(name: str, names: Sequence[str], *, ordered: bool) -> Path:
        return archive(tmp_path / name, [event(name, ordered=ordered) for name in names])

    one = recorded("one", ["p:1", "q:1", "r:1", "s:1"], ordered=True)
    same = recorded("same", ["p:1", "r:1", "s:1"], ordered=True)
    other = recorded("other", ["r:1", "q:1", "s:1"], ordered=True)
    free = recorded("free", ["s:1", "r:1"], ordered=False)
    assert found([one, same])[0].holds
    assert found([one, free])[0].holds  # nobody asked for an order there
    assert not found([one, free], ["total_order"])[0].holds
    for chunk_rows in (1, 100):
        _, verdicts = found([one, same, other], chunk_rows=chunk_rows)
        (witness,) = verdicts["total_order"].witnesses
        assert witness.subscribers == (str(one), str(other))
        assert witness.events == ("q:1", "r:1")
        assert witness.positions == (1, 2, 0, 1)


def test_random_archives_count_as_plain_loops_do(tmp_path: Path) -> None:
    for seed in range(12):
        random = Random(seed)
        names = [f"{random.choice('pqr')}:{random.randrange(12)}" for _ in range(random.randrange(25))]
        path = archive(tmp_path / str(seed), [event(name) for name in names])
        _, verdicts = found([path], chunk_rows=random.choice((1, 4, 50)))
        assert verdicts["exactly_once"].violations == len(names) - len(set(names))
        late, highest = 0, {}
        for name in dict.fromkeys(names):
            source, sequence = name[0], int(name[2:])
            late += sequence < highest.get(source, -1)
            highest[source] = max(highest.get(source, -1), sequence)
        assert verdicts["fifo"].violations == late


def test_damage_is_a_violation_and_the_other_archives_are_still_checked(tmp_path: Path) -> None:
    good = archive(tmp_path / "good", [event(f"p:{n}") for n in range(8)])
    bad = archive(tmp_path / "bad", [event(f"p:{n}") for n in range(8)])
    segment = min((damaged(bad) / "segments").glob("*.parquet"))
    audited, verdicts = found([good, bad])
    assert not audited.holds
    assert not verdicts["intact"].holds
    assert segment.name in verdicts["intact"].witnesses[0].text
    assert any("damaged" in remark for remark in audited.remarks)
    # The one that was left out may hold what the other does not.
    assert list(verdicts) == ["intact"]
    assert "damaged archives are left out" in audited.not_checked["fifo"]
    assert "damaged archives are left out" in audited.not_checked["exactly_once"]
    assert "two undamaged archives" in audited.not_checked["total_order"]


def test_what_the_archives_that_are_whole_violate_is_violated(tmp_path: Path) -> None:
    events = [event("p:0"), event("p:2"), event("p:1")]
    paths = [archive(tmp_path / name, events) for name in ("one", "two")]
    paths.append(damaged(archive(tmp_path / "bad", [event(f"p:{n}") for n in range(8)])))
    audited, verdicts = found(paths)
    assert list(verdicts) == ["intact", "fifo"]
    assert verdicts["fifo"].violations == 2
    assert {"exactly_once", "total_order"} <= {*audited.not_checked}


@pytest.mark.parametrize("guarantees", [[], ["fifo"], ["exactly_once", "fifo"]])
def test_of_a_damaged_archive_alone_nothing_holds(tmp_path: Path, guarantees: list[str]) -> None:
    bad = damaged(archive(tmp_path / "bad", [event(f"p:{n}") for n in (1, 0, 1, 2, 3, 4, 5)]))
    audited, verdicts = found([bad], guarantees)
    assert list(verdicts) == ["intact"]
    assert not audited.holds
    for name in guarantees or ("exactly_once", "fifo"):
        assert audited.not_checked[name] == "not checked: all archives are damaged"


def test_gaps_and_empty_archives_are_remarked_on(tmp_path: Path) -> None:
    with Archive.open(tmp_path / "a") as opened:
        opened.note_gap("the recorder was away")
    audited, _ = found([tmp_path / "a"])
    assert audited.holds
    assert any("the recorder was away" in remark for remark in audited.remarks)
    assert any("is empty" in remark for remark in audited.remarks)


def test_what_archives_cannot_tell_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a", [event("p:1")])
    with pytest.raises(PipelineError, match="archives cannot show whether gap_free holds"):
        found([path], ["gap_free"])
    for paths in ([path], [path, tmp_path / ".." / tmp_path.name / "a"]):  # the same one twice
        with pytest.raises(PipelineError, match="one archive cannot show whether total_order holds"):
            found(paths, ["fifo", "total_order"])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "archive.sqlite").write_bytes(b"nothing of ours" * 100)
    with pytest.raises(ArchiveError, match=r"archive\.sqlite"):
        found([tmp_path / "b"])


def test_a_guarantee_that_is_named_twice_is_checked_once(tmp_path: Path) -> None:
    names = (["p:1", "q:1"], ["q:1", "p:1"])
    paths = [archive(tmp_path / str(n), [event(name) for name in of]) for n, of in enumerate(names)]
    audited, verdicts = found(paths, ["total_order", "total_order"])
    assert len(audited.verdicts) == 2
    assert not verdicts["total_order"].holds


def test_the_command_says_what_it_did_not_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = archive(tmp_path / "one", [event(f"p:{n}") for n in range(8)])
    audit = ["audit", "--here", "--quiet", str(one)]
    assert main.run(audit) == 0
    capsys.readouterr()
    assert main.run([*audit, "-g", "total_order"]) == 2
    captured = capsys.readouterr()
    assert captured.err == ("tidings: one archive cannot show whether total_order holds: name at least two\n")
    assert not captured.out
    damaged(one)
    assert main.run([*audit, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["archives"]
    assert [verdict["guarantee"] for verdict in found["verdicts"]] == ["intact"]
    assert {"exactly_once", "fifo", "total_order"} <= {*found["not_checked"]}


def test_an_end_before_the_offset_is_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = archive(tmp_path / "a", [event(f"p:{n}") for n in range(12)])
    for offset in ("10", "-2"):
        assert main.run(["get", str(path), "--offset", offset, "--end", "5"]) == 2
        captured = capsys.readouterr()
        assert not captured.out
        assert captured.err.count("\n") == 1
        assert "--end: offset 5 is before the first one, 10" in captured.err
    assert main.run(["get", str(path), "--offset", "10", "--end", "10"]) == 0
    assert not capsys.readouterr().out
