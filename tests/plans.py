"""Planned runs, as settings: of Poisson batches unless told otherwise."""


def planned(size: int, batch: int, sigma: float | None = 1.0, **further):
    """Of a data set of this size. sigma: none where a target of ε is among the further settings."""
    found = {"dataset_size": size, "batch_size": batch, "sampling": "poisson", "delta": 1e-5}
    return found | ({} if sigma is None else {"noise_multiplier": sigma}) | further
