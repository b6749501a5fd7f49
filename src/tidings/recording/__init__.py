"""Records events into archives, replays archives, and writes traces of recordings.

Public names: `Recorder` (`recorder`), `Replay` and `Source` (`replay`), `write_trace` (`trace`).
Read `recorder`, then its parts `intake`, `marks` and `gaps`, then `replay`. docs/internals/storage.md has the reasons.
"""

from tidings.extras import need

need("a recording", "archive")
