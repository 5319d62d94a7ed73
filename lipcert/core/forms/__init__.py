"""Quadratic forms: what a cotangent becomes on its way down a chain of layers, as a whole."""
