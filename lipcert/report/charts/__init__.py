"""Charts: small pure functions from numbers to SVG, without scripts and without a library."""
