"""How tight a bound is: admissible examples, and weights, that reach it or come near.

`search.find_witness` is the whole of it; `aligned` gives weights within constraints. Nothing here
proves a bound, and no bound depends on it.
"""
