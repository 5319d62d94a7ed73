"""The lines of a certificate: what each rule evaluates, and what it adds to a proof.

A line is a record: its fields are its members in the file, its docstring is the contract of the
rule with the proof. `line` says what all have in common and finds the class of a rule, and
`proof` keeps what earlier lines have established. Nothing here chooses: every alternative is a line
of its own, and `lipcert.search` decides which are written.
"""
