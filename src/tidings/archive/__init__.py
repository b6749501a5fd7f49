"""The archive of events: a durable, replayable log (design: the data pipeline)."""
