"""Events into archives and back: recorders, replays, and traces of what was recorded."""
