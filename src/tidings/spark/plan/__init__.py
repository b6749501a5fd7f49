"""Plans an order from a table of subscriptions: groups, sizes of timestamps, precedence and placement.

`planning` is the entry. Read `tables` and `trace` (the input), `entries`, `counts`, then `local` and `on_spark` (two
ways to count), `placement` and `sizes`, and `files` (the output).
"""
