"""Conditions on events: `language` reads them, `matching` finds which of many hold for an event.

docs/internals/matching.md explains both.
"""
