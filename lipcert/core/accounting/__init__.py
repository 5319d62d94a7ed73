"""Privacy: sensitivities, noise and ε, recomputed without the engine and its libraries."""
