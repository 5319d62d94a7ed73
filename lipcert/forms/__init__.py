"""Certified quadratic forms: what proves that a chain of matrices and slopes is short of a bound.

`quadratic` carries forms through chains, `multipliers` proposes the numbers that make them tight
(and is never trusted), `completion` certifies the linear solves.
"""
