"""Numbers, names and records, as they are printed and read."""
