"""Messages as bytes: `codec` for bodies, `frames` for streams."""
