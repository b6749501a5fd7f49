"""Fixtures that tests of several directories share."""

from spark_fixture import spark

__all__ = ["spark"]
