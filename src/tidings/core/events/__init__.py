"""Events, runs of events, topics and subscriptions.

Public names: `Event`, `Publication` and `EventId`, `Run` and `Stretch`, `Subscription` and `Interest`, `TopicPattern`.
Read `event`, then `run` (every event travels as one of the two), then `topics` and `subscription`. `timestamp` and
`position` say where an event is in an order; `text` writes attribute values into traces.
docs/internals/messages.md explains why events travel in runs.
"""
