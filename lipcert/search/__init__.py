"""Search: find evidence for bounds in float64. Nothing here is trusted; the core proves it."""
