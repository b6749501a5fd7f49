"""One order for all subscribers across topics (paper ordering, corrected), over any event service.

Read `layout` (who numbers what), `server/server` (numbers), `publisher`, `subscriber` (turns), `module` (the client's
half), then `replication` (what survives).

docs/internals/ordering.md explains the protocol and where it differs from the paper.
"""
