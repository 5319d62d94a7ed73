"""Page: what a report of a study says, in the order of reading, whatever it is written in."""
