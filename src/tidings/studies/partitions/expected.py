"""Expected values for figures 9 to 12 of the partitions paper: means over 400 runs of an independent model.

The paper's curves are not in its text. 'Fanout' is the degree of the tree's nodes.
"""

from __future__ import annotations

BROKERS = 1000
FANOUTS = (3, 7)
DELTAS = (0, 1, 2, 3, 4)

DISCONNECTED = {  # figure 9: (fanout, failures) -> % of live pairs that cannot reach each other, by delta
    (3, 20): (21.9, 0.30, 0, 0, 0),
    (3, 60): (53.1, 3.66, 0.18, 0, 0),
    (3, 100): (72.3, 10.6, 1.19, 0.18, 0.02),
    (3, 200): (91.5, 33.2, 6.53, 1.20, 0.20),
    (7, 20): (9.3, 0.20, 0.01, 0, 0),
    (7, 60): (30.0, 1.49, 0.09, 0.01, 0),
    (7, 100): (45.9, 4.53, 0.41, 0.05, 0.01),
    (7, 200): (72.4, 17.6, 3.17, 0.54, 0.08),
}
DELIVERY_BROKERS, DELIVERY_FAILURES = 500, 85
CONNECTED = {  # figure 10: (fanout, failures) -> % of live pairs that reach each other, by delta
    (3, DELIVERY_FAILURES): (15.6, 77.7, 96.5, 99.4),
    (7, DELIVERY_FAILURES): (39.5, 89.0, 98.4, 99.8),
}
NEIGHBOURS = {  # figure 11: (fanout, delta) -> median, mean and greatest size of a neighbourhood without self
    (3, 1): (3, 5.0, 9),
    (3, 2): (7, 9.0, 21),
    (3, 3): (11, 14.9, 45),
    (7, 1): (7, 9.0, 49),
    (7, 2): (13, 20.9, 301),
    (7, 3): (49, 62.0, 999),
}
SESSIONS_DELTA = 3
SESSIONS = {  # figure 12: (fanout, failures) -> mean, 99th percentile and greatest number of active sessions
    (3, 16): (2.01, 4, 6),
    (3, 60): (2.06, 4, 8),
    (7, 16): (2.08, 7, 17),
    (7, 60): (2.32, 12, 27),
}
