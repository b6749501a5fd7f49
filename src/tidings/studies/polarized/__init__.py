"""The figures and claims of the polarized paper."""
