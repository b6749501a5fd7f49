"""One client, whatever is beneath it: its publications in the order of its calls, its subscriptions that may change.

Read `beneath` (what it needs of an event service), `application`, `plain`, `ordered`, `numbering`.
The asyncio API, the virtual network of users' tests, the simulator and the processes of live scenarios host it.
"""
