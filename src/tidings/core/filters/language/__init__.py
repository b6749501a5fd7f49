"""Turns the text of a filter into its canonical pattern.

Public names: `Filter` and `Pattern` (`filter`), `FilterLimits` (`normalise`), `col` (`builder`).
Read along the way of the text: `lexer`, `parse`, `expression`, `normalise`, `conjuncts`, `render`.
`filter` combines them, `implication` decides whether one filter covers another, `evaluate` matches events.
"""
