"""Backpropagation for bounds: facts flow forward, cotangents back, and whole chains of nodes help.

`propagate` is the engine. `chains` finds paths of nodes whose Jacobians are matrices and diagonals,
`chain` bounds what such a path does as a whole, `centred` what it does around the centre of the
input. None of them names an op.
"""
