"""Privacy: from gradient bounds to what is released and how much noise hides one example."""
