"""The figures and claims of the epidemic paper."""
