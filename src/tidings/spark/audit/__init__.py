"""The checkers over traces and archives of any size."""
