"""Small structures that several protocols use; each has a property test against a plain twin."""
