"""Rules: what each kind of step does to norms, boxes and gradients, and the passes over a program.

Every rule is an inequality with a proof beside it, evaluated with upward rounding.
"""
