"""A network in virtual time: `schedule`, `link`, `streams` (TCP's promises), `node`, `network`.

docs/internals/simulator.md explains it.
"""
