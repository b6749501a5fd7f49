"""Without `async`, for notebooks and scripts. Run: python examples/notebook.py"""

import tidings.sync

with tidings.sync.embedded(brokers=3) as bus, bus.subscribe("/sensors/*", where="celsius > 30.5") as hot:
    for celsius in (28.0, 31.5, 30.5, 40.0):
        bus.publish("/sensors/roof", {"celsius": celsius})
    print(hot.get(timeout_s=5.0).attributes, hot.get(timeout_s=5.0).attributes)
