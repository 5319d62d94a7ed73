"""Rules: what each kind of step does to norms, boxes and gradients, and the passes over a program.

One class for each kind of step (`base.Rule`) in the file of its family, which `steps` loads when a
program holds such a step. Every rule is an inequality with a proof beside it, evaluated with upward
rounding.
"""
