"""Spark finds `format("tidings")` by the name of this module."""
