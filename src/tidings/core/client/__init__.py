"""The one client: `session` and `reliable_session` with a broker, `application` for whoever publishes and subscribes.

`plain` and `ordered` are its subscriptions, `numbering` puts publications into an order, `arrivals` and `bookmark` say
what is done with. It is hosted by bus/host.py, by scenarios and by `tidings.testing`.

docs/internals/client.md explains credit, changes and the next life.
"""
