"""Fixtures that tests of several directories share, and how much of what is random runs."""

from breadth import load_profile
from spark_fixture import spark

__all__ = ["spark"]

load_profile()
