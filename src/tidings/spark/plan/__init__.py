"""From who subscribes to what: groups, sizes of timestamps, precedence and placement."""
