"""The benchmark of groups: systems (one file each), the worker process, measurements, the command."""
