"""Everything that decides: pure state machines, written against a Port (kernel.py).

Nothing below here reads a clock, draws a random number, opens a file or a socket, or writes a log; import
contracts keep it so. `events` and `filters` are the words, `overlay`, `ordering` and `client` the protocols,
`wire` their bytes.
"""
