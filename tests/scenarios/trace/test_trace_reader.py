"""Reading traces: other writers' files are welcome, wrong ones are refused with the column's name."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arrow_types import TEXTS, held_as
from tidings.core.errors import TraceError
from tidings.scenarios.trace.checkers import GUARANTEES, check_all
from tidings.scenarios.trace.reader import Trace, conformed
from tidings.scenarios.trace.tables import SCHEMAS, TABLES, DeliveredRow, PublishedRow, SubscribedRow
from tidings.scenarios.trace.writer import TraceWriter


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with TraceWriter(tmp_path / "seed=1") as writer:
        writer.subscribed("s", "a", ["/t"], None, "none", 0, 0)
        for number in range(3):
            writer.published(f"p:{number}", "p", number, "/t", {"x": number}, 1, number)
            writer.delivered("s", "a", number, f"p:{number}", number + 1)
    return tmp_path / "seed=1"


def test_what_was_written_is_read_with_the_exact_schemas(directory: Path) -> None:
    trace = Trace.read(directory)
    for name in TABLES:
        assert getattr(trace, name).schema.equals(SCHEMAS[name])
    rows = Trace.from_rows(
        published=[PublishedRow(f"p:{n}", "p", n, "/t", [("x", str(n))], 1, n) for n in range(3)],
        subscribed=[SubscribedRow("s", "a", ["/t"], None, "none", 0, 0)],
        delivered=[DeliveredRow("s", "a", n, f"p:{n}", n + 1) for n in range(3)],
    )
    assert rows == trace
    assert Trace.read(str(directory)) == trace


def test_the_trace_of_a_run_in_which_nothing_happened(tmp_path: Path) -> None:
    TraceWriter(tmp_path).close()
    trace = Trace.read(tmp_path)
    assert trace == Trace.from_rows()
    assert all(verdict.holds for verdict in check_all(trace, GUARANTEES))


def test_nullable_columns_in_another_order_and_in_parts(directory: Path) -> None:
    trace = Trace.read(directory)
    path = directory / "subscribed.parquet"
    table = pq.read_table(path)
    fields = [pa.field(field.name, field.type, nullable=True) for field in table.schema]
    fields[2] = pa.field("topics", pa.list_(pa.field("item", pa.string())))
    relaxed = table.cast(pa.schema(fields)).select(list(reversed(table.column_names)))
    path.unlink()
    path.mkdir()
    pq.write_table(relaxed, path / "part-0.parquet")
    assert Trace.read(directory) == trace


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_other_types_of_arrow_for_the_same_content(directory: Path, text) -> None:
    trace = Trace.read(directory)
    for name in TABLES:
        path = directory / f"{name}.parquet"
        pq.write_table(held_as(pq.read_table(path), text), path)
        assert not pq.read_table(path).schema.equals(SCHEMAS[name])
    again = Trace.read(directory)
    assert again == trace
    assert all(getattr(again, name).schema.equals(SCHEMAS[name]) for name in TABLES)


def test_a_null_among_the_values_of_a_dictionary_is_a_null(directory: Path) -> None:
    table = pq.read_table(directory / "delivered.parquet")
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int32()), pa.array(["p:0", None]))
    with pytest.raises(TraceError, match=r"delivered\.parquet: column 'event_id' has nulls"):
        conformed(
            table.set_column(3, "event_id", hidden),
            "delivered",
            directory / "delivered.parquet",
            ["event_id"],
        )


def test_the_parts_of_several_runs_are_not_one_trace(directory: Path) -> None:
    path = directory / "faults.parquet"
    table = pq.read_table(path)
    path.unlink()
    for seed in (1, 2):
        (path / f"seed={seed}").mkdir(parents=True)
        pq.write_table(table, path / f"seed={seed}" / "part-0.parquet")
    with pytest.raises(TraceError, match="unknown column 'seed'"):
        Trace.read(directory)


def test_a_trace_from_before_events_expired_is_read(directory: Path) -> None:
    whole = Trace.read(directory)
    path = directory / "published.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["expires_ns"]), path)
    assert Trace.read(directory) == whole
    assert Trace.read(directory).published["expires_ns"].null_count == len(whole.published)
    pq.write_table(pq.read_table(path).drop_columns(["confirmed_ns"]), path)
    with pytest.raises(TraceError, match="has no columns 'confirmed_ns'"):
        Trace.read(directory)


def test_no_directory_and_no_table(directory: Path) -> None:
    with pytest.raises(TraceError, match=r"no trace directory .*nowhere"):
        Trace.read(directory / "nowhere")
    (directory / "faults.parquet").unlink()
    with pytest.raises(TraceError, match="no table 'faults'"):
        Trace.read(directory)


@pytest.mark.parametrize("kept", [0, 3, 100, -1])
def test_a_truncated_file(directory: Path, kept: int) -> None:
    path = directory / "delivered.parquet"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(TraceError, match=r"cannot read trace table .*delivered") as raised:
        Trace.read(directory)
    assert "\n" not in str(raised.value)


def test_a_corrupt_page(directory: Path) -> None:
    path = directory / "delivered.parquet"
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"cannot read trace table .*delivered"):
        Trace.read(directory)


def test_wrong_columns_are_named(directory: Path) -> None:
    path = directory / "delivered.parquet"
    table = pq.read_table(path)
    nullable = table.cast(pa.schema([pa.field(f.name, f.type) for f in table.schema]))
    nulls = pa.array([0, None, 2], pa.int64())
    wrong = {
        "no columns 'position'": table.drop_columns(["position"]),
        "unknown column 'extra'": table.append_column("extra", table["at_ns"]),
        "column 'position' is string, not int64": table.set_column(2, "position", table["event_id"]),
        "column 'position' has nulls": nullable.set_column(2, pa.field("position", pa.int64()), nulls),
    }
    for message, content in wrong.items():
        pq.write_table(content, path)
        with pytest.raises(TraceError, match=message):
            Trace.read(directory)


def test_wrong_nested_columns_are_named(directory: Path) -> None:
    path = directory / "published.parquet"
    table = pq.read_table(path)
    numbers = pa.array([[("x", 1)]] * 3, pa.map_(pa.string(), pa.int64()))
    pq.write_table(table.set_column(4, "attributes", numbers), path)
    with pytest.raises(TraceError, match="column 'attributes' is map<string, int64"):
        Trace.read(directory)


def test_what_cannot_be_judged_is_told_with_its_table(directory: Path) -> None:
    path = directory / "subscribed.parquet"
    table = pq.read_table(path)
    wrong = {
        "subscription s/a has order 'Total'; known: none, fifo, causal, total": table.set_column(
            4, "order", pa.array(["Total"])
        ),
        "subscription s/a is listed twice": pa.concat_tables([table, table]),
        "subscription s/a: the filter": table.set_column(3, "filter", pa.array(["x >"])),
    }
    for message, content in wrong.items():
        pq.write_table(content, path)
        with pytest.raises(TraceError, match=message) as raised:
            check_all(Trace.read(directory))
        assert str(raised.value).startswith(f"trace table {path}: ")


def test_an_attribute_that_cannot_be_read_is_told_with_its_event(directory: Path) -> None:
    asked = directory / "subscribed.parquet"
    pq.write_table(pq.read_table(asked).set_column(3, "filter", pa.array(["x = 1"])), asked)
    path = directory / "published.parquet"
    texts = [[("x", "1")], [("x", '"1')], [("x", '"1')]]
    attributes = pa.array(texts, SCHEMAS["published"].field("attributes").type)
    pq.write_table(pq.read_table(path).set_column(4, "attributes", attributes), path)
    with pytest.raises(TraceError, match="event p:1: the attribute text") as raised:
        check_all(Trace.read(directory))
    assert str(raised.value).startswith(f"trace table {path}: ")
