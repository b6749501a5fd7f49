"""A network in virtual time: the simulator, explained in docs/internals/simulator.md.

`SimulatedNetwork` is what others use. Read `schedule` (virtual time), `link` (messages as datagrams), `streams`
(connections as over TCP), `node`, `network`, `crash_points`.
"""
