"""Implements the command line: one file per verb, `main` (the verbs and their errors), and `shared` (what verbs share).

`__main__` is the entry point; `benchmark` holds the inner parts of `tidings bench`.
"""
