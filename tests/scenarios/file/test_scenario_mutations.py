"""Whatever is done to a valid scenario, it loads and expands, or is refused with one line; nothing else."""

from __future__ import annotations

import contextlib
import copy
import datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import examples
from tidings.core.errors import ScenarioError
from tidings.scenarios.file.check import check_scenario
from tidings.scenarios.file.decode import decode_scenario
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario

VALID: dict[str, Any] = {
    "seed": 7,
    "duration_s": 30.0,
    "settle_s": 3,
    "network": {
        "delay_ms": {"kind": "uniform", "low": 1, "high": 2.5},
        "loss": {"kind": "gilbert", "rate": 0.1, "burst": 3},
        "duplicate": 0.1,
    },
    "overlay": {"mode": "best-effort", "edges": [["b0", "b1"], ["b1", "b2"], ["b1", "b3"]]},
    "recovery": {"algorithm": "push", "fanout": 2},
    "ordering": {"servers": [{"node": "b0", "topics": ["/t0"]}, {"node": "b1", "topics": ["/t1"]}]},
    "site": [{"name": "eu", "nodes": ["b0", "p0"]}, {"name": "us", "nodes": ["b1"]}],
    "link": [{"between": ["eu", "us"], "delay_ms": {"kind": "normal", "mean": 9, "std": 1}}],
    "publisher": [
        {
            "name": "p0",
            "at": "b0",
            "topics": ["/t0"],
            "count": 3,
            "attributes": {
                "x": {"kind": "int", "low": 0, "high": 5},
                "y": {"kind": "choice", "values": ["a", 1, True, 0.5]},
            },
        }
    ],
    "subscriber": [
        {
            "name": "s0",
            "at": "b2",
            "topics": ["/t0", "/a/**"],
            "filter": "x > 3",
            "changes": [{"at_s": 5, "add": ["/t2"]}, {"at_s": 6, "remove": ["/t0"]}],
            "unsubscribe_at_s": 20,
        },
        {"name": "s1", "at": "b3"},
    ],
    "fault": [
        {"kind": "crash", "at_s": 1, "until_s": 2, "nodes": ["b0"], "state": "lost"},
        {"kind": "link", "at_s": 1, "between": ["b0", "b1"]},
        {"kind": "partition", "at_s": 1, "groups": [["b0"], ["b1", "s0"]]},
        {"kind": "loss", "at_s": 1, "rate": 0.5},
    ],
}

STRANGE = st.one_of(
    st.none().map(lambda _: datetime.date(2024, 1, 1)),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.sampled_from([0, 1, -1, 10**400, 2**63, 2**64]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["b0", "b1", "p0", "s0", "eu", "/t0", "/**", "crash", "loss", "peers", "x >", "topic"]),
    st.lists(st.one_of(st.text(max_size=3), st.integers(0, 3), st.just("b0")), max_size=3),
    st.dictionaries(st.sampled_from(["kind", "rate", "at_s", "x", ""]), st.integers(0, 2), max_size=2),
    st.just({}),
    st.just([]),
)
NEW_KEYS = st.one_of(
    st.text(max_size=5), st.sampled_from(["kind", "at_s", "nodes", "rate", "name", "shape", "workload"])
)


def containers(node: object) -> list[dict[str, Any] | list[Any]]:
    """Every table and array in a document, the outermost first."""
    found: list[dict[str, Any] | list[Any]] = []
    if isinstance(node, dict | list):
        found.append(node)
        for child in node.values() if isinstance(node, dict) else node:
            found.extend(containers(child))
    return found


def mutate(data: st.DataObject, document: dict[str, Any]) -> None:
    """One change somewhere: delete, rename, replace, repeat, or copy a value from elsewhere."""
    places = [place for place in containers(document) if place]
    if not places:
        return
    place = data.draw(st.sampled_from(places))
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    key: Any = data.draw(st.sampled_from(keys))
    action = data.draw(st.sampled_from(["delete", "rename", "replace", "repeat", "transplant"]))
    if action == "delete":
        del place[key]
    elif action == "replace":
        place[key] = data.draw(STRANGE)
    elif action == "transplant":
        place[key] = copy.deepcopy(data.draw(st.sampled_from(places)))
    elif isinstance(place, list):
        place.append(copy.deepcopy(place[key]))
    else:
        place[data.draw(NEW_KEYS)] = place.pop(key) if action == "rename" else copy.deepcopy(place[key])


def outcome(document: dict[str, Any]) -> str | None:
    """None if the document makes a plan, the message if it is refused; anything else escapes and fails."""
    try:
        scenario = decode_scenario(document)
        check_scenario(scenario)
    except ScenarioError as error:
        return str(error)
    expand(scenario)
    return None


def test_the_valid_scenario_is_valid() -> None:
    assert outcome(copy.deepcopy(VALID)) is None


@settings(max_examples=examples(600))
@given(data=st.data(), count=st.integers(min_value=1, max_value=4))
def test_mutated_scenarios_load_or_are_refused_in_one_line(data: st.DataObject, count: int) -> None:
    document = copy.deepcopy(VALID)
    for _ in range(count):
        mutate(data, document)
    message = outcome(document)
    if message is not None:
        assert message
        assert len(message.splitlines()) == 1
        assert "- at `$" not in message, "the walk finds every mistake before msgspec does"


@settings(max_examples=examples(200))
@given(document=st.dictionaries(st.sampled_from(list(VALID)), STRANGE, max_size=4))
def test_strange_values_at_the_top_are_refused_or_taken(document: dict[str, Any]) -> None:
    outcome(document)


@settings(max_examples=examples(300))
@given(text=st.one_of(st.text(max_size=60), st.text(alphabet="[]{}='\"\n.,#ab01-+_ex", max_size=60)))
def test_any_text_is_refused_or_taken(text: str) -> None:
    with contextlib.suppress(ScenarioError):
        expand(parse_scenario(text))
