"""Conditions on events.

`language` turns a filter's text into a canonical `Pattern`; `matching` finds which of many patterns an event
satisfies. Read `language` first. docs/internals/matching.md explains both.
"""
