"""Starts, controls and kills brokers and sequencers as processes on this machine, and leaves none behind.

Read `child` (one process), `listening` (one that serves), `brokers` and `sequencers` (whole networks), `control` (the
commands on their stdin), `topology_file` (the file of `tidings up`).
"""
