"""Gives all subscribers the same order of events across topics (paper ordering, corrected), over any event service.

Public: `Layout`, `OrderingModule` (clients), `SequencerNode` (servers). Read `layout` (which server numbers which
topics), `server/server` (numbers), `publisher`, `subscriber` (delivery in order), `module` (the client's half), then
`replication` (restarts and takeovers). docs/internals/ordering.md explains the protocol and how it differs from the
paper.
"""
