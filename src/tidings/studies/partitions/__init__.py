"""The figures and claims of the partitions paper."""
