"""Each mistake in a scenario file gives one line that names the key; the lines are part of the interface."""

from __future__ import annotations

import pytest

from tidings.core.errors import FilterError, ScenarioError
from tidings.core.filters.language.filter import Filter
from tidings.scenarios.file.load import parse_scenario

P0 = "[[publisher]]\nname = 'p0'\nat = 'b0'\n"
S0 = "[[subscriber]]\nname = 's0'\nat = 'b0'\n"
EU = "[[site]]\nname = 'eu'\nnodes = ['b0', 'b1']\n"
US = "[[site]]\nname = 'us'\nnodes = ['b2']\n"
PEERS = "overlay.mode = 'peers'\n"
LINE = "[overlay]\nmode = 'best-effort'\nedges = [['b0', 'b1'], ['b1', 'c']]\n"


def fault(kind: str, rest: str = "") -> str:
    return f"[[fault]]\nkind = '{kind}'\nat_s = 1\n{rest}\n"


def edges(text: str) -> str:
    return f"[overlay]\nedges = {text}\n"


SYNTAX = [
    ("seed = ", "not valid TOML: Invalid value (at line 1, column 8)"),
    ("seed = 7\nx = [1,\n", "not valid TOML: Invalid value (at line 3, column 1)"),
    ("seed 7", "not valid TOML: Expected '=' after a key in a key/value pair (at line 1, column 6)"),
    ("x = " + "[" * 200_000, "not valid TOML: nested too deeply"),
    ("seed = " + "9" * 5000, "not valid TOML: a number has too many digits"),
]

KEYS = [
    ("sede = 1", "unknown key 'sede' at the top level; did you mean 'seed'?"),
    ("[network]\ndelya_ms = 1", "unknown key 'delya_ms' in [network]; did you mean 'delay_ms'?"),
    (
        "[network]\nqqq = 1",
        "unknown key 'qqq' in [network]; known keys: delay_ms, loss, duplicate, reorder, bandwidth_mbps",
    ),
    (P0 + "rat_hz = 1", "unknown key 'rat_hz' in publisher[0]; did you mean 'rate_hz'?"),
    (
        S0 + "changes = [{ at_s = 1, ad = ['/a'] }]",
        "unknown key 'ad' in subscriber[0].changes[0]; did you mean 'add'?",
    ),
    (
        "network.loss = { kind = 'bernoulli', rat = 0.1 }",
        "unknown key 'rat' in network.loss; did you mean 'rate'?",
    ),
    ("network.loss = { kind = 'bernoulli' }", "missing key 'rate' in network.loss"),
    ("[[publisher]]\nname = 'p0'", "missing key 'at' in publisher[0]"),
    ("[[subscriber]]\nat = 'b0'", "missing key 'name' in subscriber[0]"),
    (P0 + "[[publisher]]\nat = 'b0'", "missing key 'name' in publisher[1]"),
    ("[[fault]]\nkind = 'loss'", "missing key 'at_s' in fault[0]"),
    (
        "[[fault]]\nat_s = 1",
        "missing key 'kind' in fault[0]; known kinds: crash, link, partition, pause, slow, loss",
    ),
    (fault("crash"), "missing key 'nodes' in fault[0]"),
    (fault("link"), "missing key 'between' in fault[0]"),
    (fault("partition"), "missing key 'groups' in fault[0]"),
    (
        fault("crash", "nodes = ['b1']\nrate = 0.5"),
        "key 'rate' in fault[0] belongs to kind 'loss', not to kind 'crash'; "
        "known keys: kind, at_s, until_s, nodes, state",
    ),
    (
        fault("loss", "nodes = ['b1']"),
        "key 'nodes' in fault[0] belongs to kind 'crash', 'pause', 'slow', not to kind 'loss'; "
        "known keys: kind, at_s, until_s, rate",
    ),
    (
        "network.delay_ms = { kind = 'constant', mean = 3 }",
        "key 'mean' in network.delay_ms belongs to kind 'normal', not to kind 'constant'; "
        "known keys: kind, value",
    ),
    ("[[ordering.servers]]\nnode = 'b0'", "missing key 'topics' in ordering.servers[0]"),
    ("[publisher]\nname = 'p0'", "[publisher]: write [[publisher]], there may be several"),
]

TYPES = [
    ("seed = 'x'", "seed: must be a whole number, not 'x'"),
    ("seed = 1.5", "seed: must be a whole number, not 1.5"),
    ("seed = 7.0", "seed: must be a whole number, not 7.0"),
    (P0 + "count = 1.0", "publisher[0].count: must be a whole number, not 1.0"),
    ("seed = inf", "seed: must be a whole number, not inf"),
    ("seed = true", "seed: must be a whole number, not true"),
    ("seed = 2024-01-01", "seed: must be a whole number, not a date or time"),
    (
        "seed = 0x" + "f" * 5000,
        "seed: must be at most 9223372036854775807, not a number of more than 64 bits",
    ),
    ("duration_s = '30'", "duration_s: must be a number, not '30'"),
    ("duration_s = false", "duration_s: must be a number, not false"),
    ("duration_s = 0x" + "f" * 5000, "duration_s: must be a number of at most 64 bits"),
    ("network = 3", "network: must be a table, not 3"),
    ("publisher = 3", "publisher: must be an array, not 3"),
    ("publisher = [3]", "publisher[0]: must be a table, not 3"),
    ("network.delay_ms = 10", 'network.delay_ms: must be a table such as { kind = "constant", ... }, not 10'),
    (P0 + "topics = '/t0'", "publisher[0].topics: must be an array, not '/t0'"),
    (P0 + "topics = [1]", "publisher[0].topics[0]: must be a string, not 1"),
    (P0 + "attributes = 3", "publisher[0].attributes: must be a table, not 3"),
    ("ordering.causal = 'no'", "ordering.causal: must be true or false, not 'no'"),
    (edges("[['b0', 'b1', 'b2']]"), "overlay.edges[0]: needs exactly 2 names, not 3"),
    (edges("[['b0', 1]]"), "overlay.edges[0][1]: must be a string, not 1"),
    ("[[publisher]]\nname = ''\nat = 'b0'", "publisher[0].name: must not be empty"),
    (
        f"[[publisher]]\nname = '{'x' * 300}'\nat = 'b0'",
        "publisher[0].name: must not be longer than 255 characters",
    ),
]

WORDS = [
    (
        "overlay.mode = 'guarantee'",
        "overlay.mode: 'guarantee' is not one of best-effort, epidemic, guaranteed, peers; "
        "did you mean 'guaranteed'?",
    ),
    (S0 + "order = 1", "subscriber[0].order: 1 is not one of causal, fifo, none, total"),
    (P0 + "arrival = 'x'", "publisher[0].arrival: 'x' is not one of periodic, poisson"),
    (
        "network.delay_ms = { kind = 'gauss' }",
        "network.delay_ms.kind: 'gauss' is not one of constant, uniform, normal, lognormal, empirical",
    ),
    (
        "overlay.shape = { kind = 'ring' }",
        "overlay.shape.kind: 'ring' is not one of tree, random, chain, star",
    ),
    (
        P0 + "attributes = { x = { kind = 'integer' } }",
        "publisher[0].attributes.x.kind: 'integer' is not one of int, float, choice, bool; "
        "did you mean 'int'?",
    ),
    (
        P0 + "attributes = { 'a b' = { kind = 3 } }",
        "publisher[0].attributes.'a b'.kind: 3 is not one of int, float, choice, bool",
    ),
    (
        "recovery.algorithm = '3pg'",
        "recovery.algorithm: '3pg' is not one of "
        "auto, combined, none, publisher-pull, push, push+pull, subscriber-pull",
    ),
]

BOUNDS = [
    ("duration_s = 0", "duration_s: must be above 0, not 0"),
    ("duration_s = nan", "duration_s: must be a finite number, not nan"),
    ("duration_s = 1e10", "duration_s: must be at most 1000000000, not 10000000000"),
    ("settle_s = -1", "settle_s: must be at least 0, not -1"),
    (P0 + "rate_hz = 0", "publisher[0].rate_hz: must be above 0, not 0"),
    (P0 + "rate_hz = inf", "publisher[0].rate_hz: must be a finite number, not inf"),
    (P0 + "size_bytes = -1", "publisher[0].size_bytes: must be at least 0, not -1"),
    (P0 + "count = -1", "publisher[0].count: must be at least 0, not -1"),
    (P0 + "start_s = -0.5", "publisher[0].start_s: must be at least 0, not -0.5"),
    (P0 + "topics = []", "publisher[0].topics: must not be empty"),
    (S0 + "topics = []", "subscriber[0].topics: must not be empty"),
    ("network.duplicate = 1.5", "network.duplicate: must be at most 1, not 1.5"),
    ("network.loss = { kind = 'bernoulli', rate = 1.0 }", "network.loss.rate: must be below 1, not 1"),
    (
        "network.loss = { kind = 'gilbert', rate = 0.1, burst = 0.5 }",
        "network.loss.burst: must be at least 1, not 0.5",
    ),
    (
        "network.loss = { kind = 'gilbert', rate = 0.75, burst = 2 }",
        "network.loss: bursts of 2 messages allow a rate of at most 0.6667, not 0.75",
    ),
    (
        "network.delay_ms = { kind = 'normal', mean = 1, std = -1 }",
        "network.delay_ms.std: must be at least 0, not -1",
    ),
    (
        "network.delay_ms = { kind = 'lognormal', median = 0, sigma = 1 }",
        "network.delay_ms.median: must be above 0, not 0",
    ),
    ("network.delay_ms = { kind = 'empirical', values = [] }", "network.delay_ms.values: must not be empty"),
    (
        "network.delay_ms = { kind = 'empirical', values = [1, -1] }",
        "network.delay_ms.values[1]: must be at least 0, not -1",
    ),
    (
        "network.delay_ms = { kind = 'uniform', low = 9, high = 1 }",
        "network.delay_ms: low (9) is above high (1)",
    ),
    ("overlay.shape = { kind = 'tree', brokers = 0 }", "overlay.shape.brokers: must be at least 1, not 0"),
    (
        "overlay.shape = { kind = 'chain', brokers = 100001 }",
        "overlay.shape.brokers: must be at most 100000, not 100001",
    ),
    (
        "overlay.shape = { kind = 'random', brokers = 3, degree = 1 }",
        "overlay.shape.degree: 1 connects at most 2 brokers, not 3",
    ),
    (
        "overlay.shape = { kind = 'tree', degree = 3, children = 3 }",
        "overlay.shape: give either degree or children, not both",
    ),
    ("overlay.delta = -1", "overlay.delta: must be at least 0, not -1"),
    ("overlay.window = 0", "overlay.window: must be at least 1, not 0"),
    ("recovery.window = 0", "recovery.window: must be above 0, not 0"),
    ("recovery.fanout = 0", "recovery.fanout: must be at least 1, not 0"),
    (fault("slow", "nodes = ['b1']\nfactor = 0"), "fault[0].factor: must be at least 1, not 0"),
    (fault("loss", "rate = 1.1"), "fault[0].rate: must be at most 1, not 1.1"),
    (fault("partition", "groups = [['b0']]"), "fault[0].groups: needs at least 2, not 1"),
    (fault("partition", "groups = [['b0'], []]"), "fault[0].groups[1]: must not be empty"),
    (fault("crash", "nodes = []"), "fault[0].nodes: must not be empty"),
]

ATTRIBUTES = [
    (
        P0 + "attributes = { x = { kind = 'int', low = 3, high = 1 } }",
        "publisher[0].attributes.x: low (3) is above high (1)",
    ),
    (
        P0 + "attributes = { x = { kind = 'float', low = -1.7e308, high = 1.7e308 } }",
        "publisher[0].attributes.x: the range from low to high is too wide for a float",
    ),
    (P0 + "attributes = { x = { kind = 'choice' } }", "missing key 'values' in publisher[0].attributes.x"),
    (
        P0 + "attributes = { x = { kind = 'choice', values = [] } }",
        "publisher[0].attributes.x.values: must not be empty",
    ),
    (
        P0 + "attributes = { x = { kind = 'choice', values = [1, [2]] } }",
        "publisher[0].attributes.x.values[1]: must be a string, a number or a boolean, not an array",
    ),
    (
        P0 + "attributes = { x = { kind = 'choice', values = [nan] } }",
        "publisher[0].attributes.x.values[0]: must be a finite number, not nan",
    ),
    (P0 + "attributes = { '' = { kind = 'bool' } }", "publisher[0].attributes: a name must not be empty"),
    (
        P0 + "attributes = { topic = { kind = 'bool' } }",
        "publisher[0].attributes.topic: attribute name 'topic' is reserved for the event's topic",
    ),
]

NAMES = [
    (
        "[[publisher]]\nname = 'b1'\nat = 'b0'",
        "publisher[0].name: duplicate node id 'b1', already the name of a broker",
    ),
    (P0 + P0, "publisher[1].name: duplicate node id 'p0', already the name of publisher[0]"),
    (
        P0 + "[[subscriber]]\nname = 'p0'\nat = 'b1'",
        "subscriber[0].at: 'p0' is publisher[0] as well, at 'b0'; a client that publishes and subscribes has "
        "one broker, not 'b1'",
    ),
    (
        P0 + 2 * "[[subscriber]]\nname = 'p0'\nat = 'b0'\n",
        "subscriber[1].name: duplicate node id 'p0', already the name of publisher[0]",
    ),
    (
        "[[publisher]]\nname = 'order:b0'\nat = 'b0'",
        "publisher[0].name: names of nodes must not start with 'order:', as 'order:b0' does",
    ),
    (
        edges("[['order:a', 'b']]"),
        "overlay.edges: names of nodes must not start with 'order:', as 'order:a' does",
    ),
    (
        "[overlay]\nedges = [['p0', 'b1']]\n[workload]",
        "[workload]: duplicate node id 'p0', already the name of a broker",
    ),
    (
        '[[publisher]]\nname = "a\\n"\nat = "b0"',
        "publisher[0].name: 'a\\n' has an unprintable character",
    ),
    (
        "[[publisher]]\nname = 'p0'\nat = 'b40'",
        "publisher[0].at: there is no broker 'b40'; brokers: b0 to b39",
    ),
    (
        edges("[['x', 'y']]") + "[[subscriber]]\nname = 's0'\nat = 'b0'",
        "subscriber[0].at: there is no broker 'b0'; brokers: x, y",
    ),
    (
        P0 + "[[subscriber]]\nname = 's0'\nat = 'p0'",
        "subscriber[0].at: there is no broker 'p0'; brokers: b0 to b39",
    ),
    (
        P0 + fault("crash", "nodes = ['b0', 'x']"),
        "fault[0].nodes[1]: there is no node 'x'; brokers: b0 to b39; clients: p0",
    ),
    (fault("pause", "nodes = ['b0', 'b0']"), "fault[0].nodes[1]: names 'b0' twice"),
    (
        EU + fault("link", "between = ['b0', 'us']"),
        "fault[0].between[1]: there is no node or site 'us'; brokers: b0 to b39; sites: eu",
    ),
    (fault("link", "between = ['b0', 'b0']"), "fault[0].between: names 'b0' twice"),
    (EU + fault("link", "between = ['eu', 'eu']"), "fault[0].between: names 'eu' twice"),
    (
        EU + "[[link]]\nbetween = ['eu', 'b5']",
        "link[0].between: 'eu' and 'b5' are a site and a node; give two of a kind",
    ),
    ("[[link]]\nbetween = ['b1', 'b1']", "link[0].between: names 'b1' twice"),
    (
        EU + US + "[[link]]\nbetween = ['eu', 'us']\n[[link]]\nbetween = ['us', 'eu']",
        "link[1].between: 'eu' and 'us' are already link[0]",
    ),
    (
        LINE + "[[link]]\nbetween = ['b0', 'c']",
        "link[0].between: 'b0' and 'c' are not neighbours, and in mode best-effort no message goes from one to the "
        "other; neighbours of 'b0': b1",
    ),
    (
        LINE + fault("link", "between = ['c', 'b0']"),
        "fault[0].between: 'c' and 'b0' are not neighbours, and in mode best-effort no message goes from one to the "
        "other; neighbours of 'c': b1",
    ),
    (
        fault("partition", "groups = [['b0'], ['b1', 'b0']]"),
        "fault[0].groups[1][1]: 'b0' is already in groups[0]",
    ),
    (
        fault("partition", "groups = [['b0'], ['b40']]"),
        "fault[0].groups[1][0]: there is no node 'b40'; brokers: b0 to b39",
    ),
    (EU + EU, "site[1].name: 'eu' is already site[0]"),
    ("[[site]]\nname = 'b3'\nnodes = ['b0']", "site[0].name: 'b3' is already the name of a broker"),
    (EU + "[[site]]\nname = 'us'\nnodes = ['b1']", "site[1].nodes[0]: 'b1' is already in site 'eu'"),
    ("[[site]]\nname = 'eu'\nnodes = ['x']", "site[0].nodes[0]: there is no node 'x'; brokers: b0 to b39"),
    (
        "ordering.servers = [{ node = 'x', topics = ['/t0'] }]",
        "ordering.servers[0].node: there is no node 'x'; brokers: b0 to b39",
    ),
    (
        "ordering.servers = [{ node = 'b0', topics = ['/t0'] }, { node = 'b0', topics = ['/t1'] }]",
        "ordering.servers[1].node: 'b0' is already ordering.servers[0]",
    ),
    (
        "ordering.servers = [{ node = 'b0', topics = ['/t0'] }, { node = 'b1', topics = ['/t1', '/t0'] }]",
        "ordering.servers[1].topics[1]: '/t0' is already in ordering.servers[0].topics",
    ),
    (
        "ordering.servers = [{ node = 'b0', topics = ['/t/*', '/t/*'] }]",
        "ordering.servers[0].topics[1]: '/t/*' is already in ordering.servers[0].topics",
    ),
    (
        P0 + "[[ordering.servers]]\nnode = 'p0'\ntopics = ['/t0']",
        "ordering.servers[0].node: 'p0' is publisher[0], no broker; brokers: b0 to b39",
    ),
    (
        "ordering.servers = [{ node = 'b0', topics = ['/t0'], standby = 'b40', witness = 'b1' }]",
        "ordering.servers[0].standby: there is no node 'b40'; brokers: b0 to b39",
    ),
    (
        "ordering.servers = [{ node = 'b0', topics = ['/t0'], standby = 'b1' }]",
        "ordering.servers[0].standby: needs a witness as well",
    ),
    (
        "ordering.servers = [{ node = 'b0', topics = ['/t0'], witness = 'b1' }]",
        "ordering.servers[0].witness: needs a standby as well",
    ),
    (
        "ordering.servers = [{ node = 'b0', topics = ['/t0'], standby = 'b1', witness = 'b0' }]",
        "ordering.servers[0].witness: 'b0' is already its node; they are three nodes",
    ),
    (
        P0 + "topics = ['/t0', '/x']\n" + S0 + "order = 'total'\n"
        "[[ordering.servers]]\nnode = 'b0'\ntopics = ['/t0']",
        "publisher[0].topics[1]: '/x' is in no entry of ordering.servers, and subscriber 's0' selects it with "
        'order "total"',
    ),
    (
        "[workload]\ntopics = 20\norder = 'causal'\n[[ordering.servers]]\nnode = 'b0'\ntopics = ['/t0']",
        "workload.topics: '/t1' is in no entry of ordering.servers, and [workload] selects it with "
        'order "causal"',
    ),
    (
        "[workload]\ntopics = 5000\norder = 'total'",
        'ordering.servers: at most 4096 topics can have an order, not 5000; list patterns such as "/t/**"',
    ),
    (
        P0 + "attributes = { '~order' = { kind = 'int' } }",
        "publisher[0].attributes.'~order': attribute name '~order': names that start with '~' are reserved",
    ),
    (
        PEERS + "[[publisher]]\nname = 'n'\nat = 'n'\n[[subscriber]]\nname = 'n'\nat = 'm'",
        "subscriber[0].name: duplicate node id 'n', already the name of publisher[0]",
    ),
    (
        PEERS + "[[publisher]]\nname = 'n'\nat = 'n'\n" + fault("crash", "nodes = ['b0']"),
        "fault[0].nodes[0]: there is no node 'b0'; clients: n",
    ),
]

TIMES = [
    (fault("loss", "until_s = 1.0"), "fault[0].until_s: 1 is not after at_s (1)"),
    ("[[fault]]\nkind = 'loss'\nat_s = 30", "fault[0].at_s: 30 is not before the end of duration_s (30)"),
    ("[[fault]]\nkind = 'loss'\nat_s = -1", "fault[0].at_s: must be at least 0, not -1"),
    (P0 + "start_s = 31", "publisher[0].start_s: 31 is not before the end of duration_s (30)"),
    (
        "settle_s = 10.5\n" + S0 + "subscribe_at_s = 40.5",
        "subscriber[0].subscribe_at_s: 40.5 is not before the end of the run (duration_s and settle_s, 40.5)",
    ),
    (
        S0 + "subscribe_at_s = 5\nunsubscribe_at_s = 5",
        "subscriber[0].unsubscribe_at_s: 5 is not after subscribe_at_s (5)",
    ),
    (
        S0 + "subscribe_at_s = 5\nchanges = [{ at_s = 4, add = ['/a'] }]",
        "subscriber[0].changes[0].at_s: 4 is before subscribe_at_s (5)",
    ),
    (
        S0 + "unsubscribe_at_s = 5\nchanges = [{ at_s = 5, add = ['/a'] }]",
        "subscriber[0].changes[0].at_s: 5 is not before unsubscribe_at_s (5)",
    ),
    (S0 + "changes = [{ at_s = 1 }]", "subscriber[0].changes[0]: needs topics to add or to remove"),
    (
        S0
        + "topics = ['/a', '/b']\nchanges = [{ at_s = 9, remove = ['/a'] }, { at_s = 9.5, remove = ['/a'] }]",
        "subscriber[0].changes[1].remove: '/a' is not subscribed at 9.5 s; subscribed: /b",
    ),
    (
        S0 + "changes = [{ at_s = 1, remove = ['/a'] }]",
        "subscriber[0].changes[0].remove: '/a' is not subscribed at 1 s; subscribed: /**",
    ),
]

TOPICS = [
    (
        P0 + "topics = ['t0']",
        "publisher[0].topics[0]: topic 't0' must start with '/' and name at least one level",
    ),
    (
        P0 + "topics = ['/a', '/a/*']",
        "publisher[0].topics[1]: topic '/a/*' has a wildcard; only topic patterns may have one",
    ),
    (S0 + "topics = ['/a//b']", "subscriber[0].topics[0]: topic pattern '/a//b' has an empty level"),
    (
        S0 + "changes = [{ at_s = 1, add = ['/a', '/**/b'] }]",
        "subscriber[0].changes[0].add[1]: topic pattern '/**/b': "
        "'*' must be a whole level, '**' may only be at the end",
    ),
    (
        "ordering.servers = [{ node = 'b0', topics = ['/t*'] }]",
        "ordering.servers[0].topics[0]: topic pattern '/t*': '*' must be a whole level, '**' may only be at the end",
    ),
]

OVERLAY = [
    (edges("[]"), "overlay.edges: must not be empty"),
    (edges("[['a', 'b'], ['c', 'c']]"), "overlay.edges[1]: self-loop at 'c'"),
    (edges("[['a', 'b'], ['b', 'a']]"), "overlay.edges[1]: repeated edge 'b' - 'a', as overlay.edges[0]"),
    (
        edges("[['a', 'b'], ['b', 'c'], ['c', 'd'], ['d', 'b']]"),
        "overlay.edges[3]: cyclic topology: 'd' - 'c' - 'b' - 'd'",
    ),
    (edges("[['a', 'b'], ['c', 'd']]"), "overlay.edges: disconnected topology: no path from 'a' to 'c'"),
    (
        "[overlay]\nedges = [['a', 'b']]\nshape = { kind = 'chain' }",
        "[overlay]: give either shape or edges, not both",
    ),
]

WORKLOAD = [
    (
        P0 + "[workload]",
        "[workload] stands instead of [[publisher]] and [[subscriber]]: remove it or [[publisher]]",
    ),
    (
        S0 + "[workload]",
        "[workload] stands instead of [[publisher]] and [[subscriber]]: remove it or [[subscriber]]",
    ),
    (
        "[workload]\ntopics = 5\ntopics_per_subscriber = 6",
        "workload.topics_per_subscriber: must be at most topics (5), not 6",
    ),
    ("[workload]\nrate_hz = 0", "workload.rate_hz: must be above 0, not 0"),
    ("[workload]\ntopics = 0", "workload.topics: must be at least 1, not 0"),
    (
        "[workload]\npopularity = { kind = 'zipf' }",
        "workload.popularity.kind: 'zipf' is not one of uniform, powerlaw",
    ),
]

MISTAKES = [
    *SYNTAX, *KEYS, *TYPES, *WORDS, *BOUNDS, *ATTRIBUTES, *NAMES, *TIMES, *TOPICS, *OVERLAY, *WORKLOAD
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message[:50] for _, message in MISTAKES])
def test_mistake(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text, name="f.toml")
    assert str(caught.value) == f"f.toml: {message}"


@pytest.mark.parametrize("sql", ["x >", "x > 3 AND", "", "rand() > 0.5", "x = 'open"])
def test_filter_mistake_names_the_key_and_keeps_the_position(sql: str) -> None:
    with pytest.raises(FilterError) as expected:
        Filter(sql)
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(f'{S0}filter = """{sql}"""')
    assert str(caught.value) == f"scenario: subscriber[0].filter: {expected.value}"


def test_an_event_that_is_too_large_is_a_mistake_of_the_file() -> None:
    with pytest.raises(ScenarioError, match=r"^scenario: publisher\[0\]: the event has \d+ bytes"):
        parse_scenario(P0 + f"size_bytes = {1024 * 1024}")
    many = ", ".join(f"a{index} = {{ kind = 'bool' }}" for index in range(300))
    with pytest.raises(ScenarioError, match=r"^scenario: publisher\[0\]: 300 attributes"):
        parse_scenario(P0 + f"attributes = {{ {many} }}")


LONG = "k" * 10_000 + "\\n"
LONG_TEXTS = [
    f'"{LONG}" = 1',
    f'seed = "{LONG}"',
    f'overlay.mode = "{LONG}"',
    f'overlay.edges = [["{LONG}", "{LONG}"]]',
    'overlay.edges = [["a\\n", "a\\n"]]',
    '[[publisher]]\nname = "p0"\nat = "b0\\u2028"',
    f'{P0}topics = ["/{LONG}"]',
    f'{P0}attributes = {{ "{LONG}" = {{ kind = "x" }} }}',
    f'{S0}changes = [{{ at_s = 1, remove = ["/{LONG}"] }}]',
    fault("crash", 'nodes = ["b0\\n"]'),
]


@pytest.mark.parametrize("text", LONG_TEXTS, ids=range(len(LONG_TEXTS)))
def test_messages_stay_on_one_line_and_short(text: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(text)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        LINE + fault("link", "between = ['b1', 'c']") + "[[link]]\nbetween = ['c', 'b1']",
        LINE + P0 + "[[link]]\nbetween = ['p0', 'b0']",
        LINE.replace("best-effort", "guaranteed") + fault("link", "between = ['b0', 'c']"),
        LINE.replace("best-effort", "epidemic") + "[[link]]\nbetween = ['b0', 'c']",
        LINE + P0 + S0 + "order = 'total'\n" + fault("link", "between = ['b0', 'c']"),
        "[overlay]\nmode = 'best-effort'\nshape = { kind = 'star' }\n"
        + fault("link", "between = ['b1', 'b2']"),
    ],
    ids=["neighbours", "client", "guaranteed", "epidemic", "sequencers", "shape"],
)
def test_a_link_that_does_or_may_do_something_is_no_mistake(text: str) -> None:
    parse_scenario(text)


def test_who_subscribes_while_the_network_settles_is_in_time() -> None:
    parse_scenario(S0 + "subscribe_at_s = 59.9")
