"""The client's half of every promise, hosted by bus/host.py, by scenarios and by `tidings.testing`.

Public: `Application` (publishes and subscribes), `BestEffortClient` and `ReliableClient` (sessions with a broker).
Read `beneath` (what an event service offers), `session` and `reliable_session`, `application`, its subscriptions
(`plain`, `ordered` with `turns`), `numbering` (numbers for publications), then `arrivals` (acknowledgements) and
`bookmark` (restarts). docs/internals/client.md explains credit, changes and restarts.
"""
