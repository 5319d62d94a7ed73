"""Exact checks of claimed spectral norms: ‖W‖₂ ≤ c, proved or not proved.

Two engines prove the same statement in different arithmetic, `float_engine` and
`integer_engine`; a claim that one proves and that is false is a fault of the checker.
"""
