"""Each mistake about durable subscribers and groups gives one line that names the key."""

from __future__ import annotations

import pytest

from tidings.core.errors import ScenarioError
from tidings.scenarios.file.expand import expand
from tidings.scenarios.file.load import parse_scenario
from tidings.scenarios.file.schema import UniformDelay


def subscriber(name: str, rest: str = "") -> str:
    return f"[[subscriber]]\nname = '{name}'\nat = 'b0'\n{rest}\n"


DURABLE = "durable = 'billing'\n"
GROUP = "group = 'workers'\n"
LIMITED = "max_deliveries = 2\ndead_letter = '/dead'\n"

MISTAKES = [
    ("durabel = 'x'", "unknown key 'durabel' in subscriber[0]; did you mean 'durable'?"),
    ("work_m = { kind = 'constant' }", "unknown key 'work_m' in subscriber[0]; did you mean 'work_ms'?"),
    (
        DURABLE + GROUP,
        "subscriber[0]: give either durable or group, not both; a group is durable already",
    ),
    ("work_ms = { kind = 'constant', value = 1 }", "subscriber[0].work_ms: needs durable or group"),
    ("group_by = 'x'", "subscriber[0].group_by: needs durable or group"),
    ("ack = 'manual'", "subscriber[0].ack: needs durable or group"),
    ("max_unacked = 1", "subscriber[0].max_unacked: needs durable or group"),
    (LIMITED, "subscriber[0].max_deliveries: needs durable or group"),
    ("keep_for_s = 1", "subscriber[0].keep_for_s: needs durable or group"),
    (
        DURABLE + "start = 'earliest'\norder = 'total'",
        'subscriber[0].start: "earliest" is not available with durable and order "total"; use "fifo"',
    ),
    (
        "start = 'earliest'\nchanges = [{ at_s = 1, add = ['/b'] }]\ntopics = ['/a']",
        'subscriber[0].changes: not allowed with start = "earliest"; list another subscriber for other topics',
    ),
    (DURABLE + "start = 'last'", "subscriber[0].start: 'last' is not one of earliest, new"),
    (
        DURABLE + "ack = 'automatic'",
        "subscriber[0].ack: 'automatic' is not one of auto, manual; did you mean 'auto'?",
    ),
    (DURABLE + "group_by = ''", "subscriber[0].group_by: must not be empty"),
    (DURABLE + "max_unacked = 0", "subscriber[0].max_unacked: must be at least 1, not 0"),
    (DURABLE + "keep_for_s = 0", "subscriber[0].keep_for_s: must be above 0, not 0"),
    (
        DURABLE + f"max_unacked = {10**18}",
        f"subscriber[0].max_unacked: must be at most 1000000, not {10**18}",
    ),
    (
        DURABLE + "work_ms = 5",
        'subscriber[0].work_ms: must be a table such as { kind = "constant", ... }, not 5',
    ),
    (
        DURABLE + "work_ms = { kind = 'uniform', low = 5, high = 1 }",
        "subscriber[0].work_ms: low (5) is above high (1)",
    ),
    (
        "durable = 'a b'",
        "subscriber[0].durable: 'a b' must have 1 to 64 letters, digits, '.', '_' or '-', "
        "and start with a letter or a digit",
    ),
    (
        "group = ''",
        "subscriber[0].group: '' must have 1 to 64 letters, digits, '.', '_' or '-', "
        "and start with a letter or a digit",
    ),
    (
        DURABLE + "group_by = 'x'",
        "subscriber[0].group_by: is for members of a group; a durable subscriber gets all events",
    ),
    (GROUP + "order = 'total'", "subscriber[0].order: 'total' is not available with group; use none"),
    (GROUP + "order = 'fifo'", "subscriber[0].order: 'fifo' is not available with group; use none"),
    (
        DURABLE + "changes = [{ at_s = 1, add = ['/b'] }]",
        "subscriber[0].changes: not allowed with durable, which keeps its topics",
    ),
    (
        DURABLE + "max_deliveries = 2",
        "subscriber[0].max_deliveries: needs dead_letter, the topic for events that were delivered too often",
    ),
    (DURABLE + "dead_letter = '/dead'", "subscriber[0].dead_letter: needs max_deliveries"),
    (DURABLE + LIMITED, "subscriber[0].dead_letter: '/dead' is among the subscriber's own topics"),
    (
        DURABLE + "topics = ['/dead/*']\nmax_deliveries = 1\ndead_letter = '/dead/x'",
        "subscriber[0].dead_letter: '/dead/x' is among the subscriber's own topics",
    ),
]


@pytest.mark.parametrize(("keys", "line"), MISTAKES)
def test_one_subscriber(keys: str, line: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(subscriber("s0", keys))
    assert str(caught.value) == f"scenario: {line}"


def test_a_bad_dead_letter_is_named() -> None:
    keys = DURABLE + "topics = ['/a']\nmax_deliveries = 1\ndead_letter = 'dead'"
    with pytest.raises(ScenarioError, match=r"^scenario: subscriber\[0\]\.dead_letter: .*'dead'"):
        parse_scenario(subscriber("s0", keys))


@pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("durable", DURABLE),
        ("ack", GROUP + "ack = 'manual'"),
        ("max_unacked", GROUP + "max_unacked = 1"),
        ("max_deliveries", GROUP + "topics = ['/a']\n" + LIMITED),
        ("keep_for_s", GROUP + "keep_for_s = 1"),
    ],
)
def test_other_modes(mode: str, key: str, keys: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(f"overlay.mode = '{mode}'\n" + subscriber("s0", keys))
    assert (
        str(caught.value) == f'scenario: subscriber[0].{key}: needs overlay.mode "guaranteed", not "{mode}"'
    )


@pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
def test_groups_of_other_modes(mode: str) -> None:
    keys = GROUP + "group_by = 'x'\nwork_ms = { kind = 'constant', value = 1 }"
    scenario = parse_scenario(f"overlay.mode = '{mode}'\n" + subscriber("s0", keys))
    assert (scenario.subscribers[0].group, scenario.subscribers[0].group_by) == ("workers", "x")


@pytest.mark.parametrize("mode", ["best-effort", "epidemic"])
def test_a_start_needs_the_guarantee(mode: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(f"overlay.mode = '{mode}'\n" + subscriber("s0", "start = 'earliest'"))
    line = f'subscriber[0].start: "earliest" needs overlay.mode "guaranteed", not "{mode}"'
    assert str(caught.value) == f"scenario: {line}"


PAIRS = [
    (
        "start = 'earliest'",
        "start = 'earliest'\norder = 'total'",
        "subscriber[1].order: the archive of 'b0' has one order: 'total' needs 'total', "
        "and subscriber[0] needs 'none'; use another broker for one of them",
    ),
    (
        DURABLE,
        DURABLE,
        "subscriber[1].subscribe_at_s: 'billing' is still held by subscriber[0] at 0 s: "
        "that one never leaves (unsubscribe_at_s)",
    ),
    (
        DURABLE + "unsubscribe_at_s = 5",
        DURABLE + "subscribe_at_s = 4",
        "subscriber[1].subscribe_at_s: 'billing' is still held by subscriber[0] at 4 s: "
        "that one leaves at 5 s (unsubscribe_at_s)",
    ),
    (
        DURABLE + "subscribe_at_s = 4",
        DURABLE + "unsubscribe_at_s = 5",
        "subscriber[0].subscribe_at_s: 'billing' is still held by subscriber[1] at 4 s: "
        "that one leaves at 5 s (unsubscribe_at_s)",
    ),
    (
        DURABLE,
        "group = 'billing'",
        "subscriber[1].group: 'billing' is the name of a durable subscription in subscriber[0]",
    ),
    (
        GROUP,
        "durable = 'workers'",
        "subscriber[1].durable: 'workers' is the name of a group in subscriber[0]",
    ),
    (
        GROUP + "topics = ['/a', '/b']",
        GROUP + "topics = ['/a']",
        "subscriber[1].topics: must be the same as in subscriber[0], which has the same group",
    ),
    (
        GROUP + "filter = 'x > 3'",
        GROUP + "filter = 'x > 4'",
        "subscriber[1].filter: must be the same as in subscriber[0], which has the same group",
    ),
    (
        GROUP + "group_by = 'x'",
        GROUP,
        "subscriber[1].group_by: must be the same as in subscriber[0], which has the same group",
    ),
    (
        GROUP + "keep_for_s = 60",
        GROUP,
        "subscriber[1].keep_for_s: must be the same as in subscriber[0], which has the same group",
    ),
    (
        DURABLE + "unsubscribe_at_s = 5",
        DURABLE + "subscribe_at_s = 5\norder = 'fifo'",
        "subscriber[1].order: must be the same as in subscriber[0], which has the same durable",
    ),
]


@pytest.mark.parametrize(("one", "two", "line"), PAIRS)
def test_two_subscribers(one: str, two: str, line: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(subscriber("s0", one) + subscriber("s1", two))
    assert str(caught.value) == f"scenario: {line}"


def test_a_publisher_of_the_same_name_cannot_have_dead_letters() -> None:
    publisher = "[[publisher]]\nname = 's0'\nat = 'b0'\n"
    keys = DURABLE + "topics = ['/a']\n" + LIMITED
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(publisher + subscriber("s0", keys))
    line = "subscriber[0].dead_letter: 's0' is also a publisher; give the subscriber a name of its own"
    assert str(caught.value) == f"scenario: {line}"


def test_equal_members_in_other_words_are_equal() -> None:
    one = GROUP + "topics = ['/a', '/b']\nfilter = 'x > 3 AND x > 2'"
    two = GROUP + "topics = ['/b', '/a']\nfilter = 'x > 2 and x > 3'"
    parse_scenario(subscriber("s0", one) + subscriber("s1", two))


def test_the_plan_has_everything() -> None:
    keys = (
        "topics = ['/a']\ngroup_by = 'x'\nack = 'manual'\nmax_unacked = 3\nkeep_for_s = 2.5\n"
        "work_ms = { kind = 'uniform', low = 1, high = 2 }\n"
    )
    plan = expand(parse_scenario(subscriber("s0", GROUP + keys + LIMITED) + subscriber("s1")))
    share = plan.subscribers[0].share
    assert share is not None and plan.subscribers[1].share is None
    assert (share.name, share.group, share.group_by, share.ack) == ("workers", True, "x", "manual")
    assert (share.max_unacked, share.keep_for_ns, share.durable) == (3, 2_500_000_000, None)
    assert (share.max_deliveries, share.dead_letter) == (2, "/dead")
    assert share.work_ms == UniformDelay(low=1, high=2)


def test_a_later_subscriber_of_the_same_name_goes_on() -> None:
    one, two = DURABLE + "unsubscribe_at_s = 5", DURABLE + "subscribe_at_s = 5"
    plan = expand(parse_scenario(subscriber("s0", one) + subscriber("s1", two)))
    assert [each.share.durable for each in plan.subscribers if each.share] == ["billing", "billing"]
