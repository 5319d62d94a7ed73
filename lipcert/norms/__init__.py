"""Certified operator norms of linear maps, and the geometry of windows that slide over a grid."""
