"""Events into archives and back: recorders, replays, and traces of what was recorded."""

from tidings.extras import need

need("a recording", "archive")
