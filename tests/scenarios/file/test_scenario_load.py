"""Defaults, files that cannot be read, the shipped scenarios, and the manual."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import inspect

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import load_scenario, parse_scenario
from tidings.scenarios.file.schema import (
    ConstantDelay,
    CrashFault,
    EmpiricalDelay,
    LinkFault,
    LossFault,
    NoLoss,
    PowerlawPopularity,
    Scenario,
    SlowFault,
    TreeShape,
)
from tidings.scenarios.file.topology import build_topology

ROOT = Path(__file__).parents[3]
SHIPPED = sorted((ROOT / "scenarios").glob("*.toml"))


def test_defaults_of_the_tables() -> None:
    scenario = parse_scenario("")
    assert (scenario.seed, scenario.duration_s, scenario.settle_s) == (7, 30.0, 30.0)
    network, overlay, recovery, ordering = (
        scenario.network,
        scenario.overlay,
        scenario.recovery,
        scenario.ordering,
    )
    assert (network.delay_ms, network.loss) == (ConstantDelay(value=10.0), NoLoss())
    assert (network.duplicate, network.reorder, network.bandwidth_mbps) == (0.0, 0.0, 0.0)
    assert (overlay.mode, overlay.delta, overlay.window) == ("guaranteed", 2, 64)
    assert (recovery.algorithm, recovery.selection, recovery.weights) == ("auto", "random", "topology")
    assert (recovery.fanout, recovery.interval_ms, recovery.window, recovery.pull) == (
        3,
        1000.0,
        0.25,
        "solicit",
    )
    assert (recovery.redundancy, recovery.block_bytes, recovery.buffer_events) == (0, 1472, 1500)
    assert recovery.forward_probability == 0.5
    assert (ordering.servers, ordering.causal, ordering.buffer_events, ordering.ttl_ms) == ((), False, 0, 0.0)
    assert (
        scenario.publishers
        == scenario.subscribers
        == scenario.faults
        == scenario.sites
        == scenario.links
        == ()
    )
    assert scenario.workload is None


def test_the_default_network_is_a_tree_of_40_brokers_of_degree_3() -> None:
    explicit = parse_scenario("overlay.shape = { kind = 'tree', brokers = 40, degree = 3 }")
    assert explicit.overlay.shape == TreeShape(brokers=40, degree=3)
    assert build_topology(parse_scenario("").overlay, 7) == build_topology(explicit.overlay, 7)
    assert build_topology(parse_scenario("overlay.shape = { kind = 'tree' }").overlay, 7).brokers[-1] == "b39"


def test_defaults_of_clients() -> None:
    scenario = parse_scenario(
        "[[publisher]]\nname = 'p0'\nat = 'b3'\n[[subscriber]]\nname = 's0'\nat = 'b7'\n"
    )
    (publisher,) = scenario.publishers
    assert (publisher.topics, publisher.rate_hz, publisher.count) == (("/t0",), 10.0, None)
    assert (publisher.start_s, publisher.arrival, publisher.size_bytes) == (0.0, "poisson", 128)
    assert publisher.attributes == {}
    (subscriber,) = scenario.subscribers
    assert (subscriber.topics, subscriber.filter, subscriber.order) == (None, None, "none")
    assert (subscriber.subscribe_at_s, subscriber.changes, subscriber.unsubscribe_at_s) == (0.0, (), None)


def test_defaults_of_faults_and_workload() -> None:
    scenario = parse_scenario(
        "fault = [{ at_s = 1, kind = 'crash', nodes = ['b1'] },"
        "{ at_s = 1, kind = 'link', between = ['b0', 'b1'] },"
        "{ at_s = 1, kind = 'slow', nodes = ['b1'] }, { at_s = 1, kind = 'loss' }]\n[workload]\n"
    )
    assert scenario.faults == (
        CrashFault(at_s=1.0, nodes=("b1",), state="kept"),
        LinkFault(at_s=1.0, between=("b0", "b1"), direction="both"),
        SlowFault(at_s=1.0, nodes=("b1",), factor=10.0),
        LossFault(at_s=1.0, rate=0.2),
    )
    workload = scenario.workload
    assert workload is not None
    assert (workload.publishers, workload.subscribers, workload.topics) == (10, 100, 50)
    assert (workload.rate_hz, workload.popularity) == (5.0, PowerlawPopularity(shape=0.901))
    assert {len(subscriber.timeline[0].topics or ()) for subscriber in expand(scenario).subscribers} == {10}


def test_whole_numbers_are_taken_where_numbers_are() -> None:
    scenario = parse_scenario("duration_s = 5\nnetwork.delay_ms = { kind = 'empirical', values = [1, 2.5] }")
    assert isinstance(scenario.duration_s, float)
    assert scenario.network.delay_ms == EmpiricalDelay(values=(1.0, 2.5))


def test_peers_need_no_broker_and_may_both_publish_and_subscribe() -> None:
    scenario = parse_scenario(
        "overlay.mode = 'peers'\n[[publisher]]\nname = 'n0'\nat = 'n0'\n"
        "[[subscriber]]\nname = 'n0'\nat = 'n0'\n[[subscriber]]\nname = 'n1'\nat = 'n1'\n"
        "[[fault]]\nkind = 'crash'\nat_s = 1\nnodes = ['n1']\n"
    )
    plan = expand(scenario)
    assert plan.topology.brokers == ()
    generated = expand(parse_scenario("overlay.mode = 'peers'\n[workload]\npublishers = 2\nsubscribers = 2"))
    assert [(client.name, client.at) for client in generated.publishers] == [("p0", "p0"), ("p1", "p1")]


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_shipped_scenario_loads_and_says_what_it_shows(path: Path) -> None:
    assert path.read_text().startswith("# ")
    scenario = load_scenario(path)
    assert scenario.overlay.mode in ("best-effort", "guaranteed", "epidemic")
    plan = expand(scenario)
    assert plan.publishers
    assert plan.subscribers


def test_the_shipped_scenarios() -> None:
    names = [path.stem for path in SHIPPED]
    for name in ("tree", "chain", "lossy", "faults", "sites", "workload", "thousand"):
        assert name in names
    assert len(expand(load_scenario(ROOT / "scenarios/thousand.toml")).topology.brokers) == 1000
    kinds = {fault.kind for fault in expand(load_scenario(ROOT / "scenarios/faults.toml")).faults}
    assert kinds == {"crash", "link", "partition", "pause", "slow", "loss"}


def read_error(path: Path) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    return str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, latin = tmp_path / "missing.toml", tmp_path / "latin.toml"
    latin.write_bytes(b"seed = 7 # caf\xe9")
    assert read_error(missing) == f"{missing}: no such file"
    assert read_error(tmp_path) == f"{tmp_path}: is a directory, not a file"
    assert read_error(latin) == f"{latin}: is not UTF-8 text (byte 14)"
    assert read_error(missing / "deeper") == f"{missing / 'deeper'}: no such file"
    assert read_error(latin / "deeper") == f"{latin / 'deeper'}: cannot be read: Not a directory"
    assert read_error(Path("nul\0byte")).endswith("cannot be read: embedded null byte")
    assert "larger than 64 MiB" in read_error(Path("/dev/zero"))


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.toml"
    secret.write_text("seed = 7")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert read_error(secret) == f"{secret}: permission denied"


def test_a_mistake_in_a_file_names_the_file_as_the_user_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree.toml").write_text("[network]\ndelya_ms = 1\n")
    message = "tree.toml: unknown key 'delya_ms' in [network]; did you mean 'delay_ms'?"
    assert read_error(Path("tree.toml")) == message


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 9\r\nduration_s = 3.0\r\n")
    assert load_scenario(path).seed == 9


def schema_keys(kind: inspect.Type) -> Iterator[str]:
    """Every key, and every kind, that a file may contain."""
    match kind:
        case inspect.StructType():
            if kind.tag is not None:
                yield str(kind.tag)
            for field in kind.fields:
                yield field.encode_name
                yield from schema_keys(field.type)
        case inspect.UnionType():
            for option in kind.types:
                yield from schema_keys(option)
        case inspect.VarTupleType():
            yield from schema_keys(kind.item_type)
        case inspect.DictType():
            yield from schema_keys(kind.value_type)
        case inspect.LiteralType():
            yield from (str(word) for word in kind.values)


def test_the_manual_mentions_every_key_kind_and_word() -> None:
    manual = (ROOT / "docs" / "scenarios.md").read_text()
    sections = {"network", "overlay", "recovery", "ordering", "workload"}
    tables = {"site", "link", "publisher", "subscriber", "fault"}
    keys = list(dict.fromkeys(schema_keys(inspect.type_info(Scenario))))
    assert len(keys) > 100
    missing = [
        key
        for key in keys
        if not (
            f"`{key}`" in manual
            or (key in sections and f"`[{key}]`" in manual)
            or (key in tables and f"`[[{key}]]`" in manual)
        )
    ]
    assert missing == []


def test_the_example_of_the_manual_loads() -> None:
    manual = (ROOT / "docs" / "scenarios.md").read_text()
    example = manual.split("```toml\n")[1].split("```")[0]
    assert len(expand(parse_scenario(example)).subscribers) == 1
