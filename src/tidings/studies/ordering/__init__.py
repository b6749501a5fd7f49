"""The figures and claims of the ordering paper."""
