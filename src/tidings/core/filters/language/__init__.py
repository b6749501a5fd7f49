"""From the text of a filter to its canonical pattern: `lexer`, `parse`, `expression`, `normalise`, `conjuncts`,
`render`.

`filter` puts them together; `implication` says which filter covers another; `builder` makes filters in Python.
"""
