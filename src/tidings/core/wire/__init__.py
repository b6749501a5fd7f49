"""Messages as bytes.

`codec` encodes and decodes messages (`encode`, `decode`), `frames` cuts a byte stream into their bodies (`frame`,
`FrameReader`), and `archive_messages` defines what archives and their readers say. Read `frames`, then `codec`.
docs/internals/messages.md explains the format.
"""
