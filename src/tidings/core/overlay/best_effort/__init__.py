"""Mode best-effort: events follow the interests along a tree, once, and no broker stores them.

`broker` composes the parts; `tree` routes events and notifies clients.
"""
