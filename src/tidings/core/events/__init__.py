"""Events, runs of them, topics and subscriptions. Read `event`, then `run`: what travels is one of the two.

docs/internals/messages.md says why events travel in runs.
"""
