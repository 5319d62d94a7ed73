"""Text: numbers, names and records, as they are printed and read."""
