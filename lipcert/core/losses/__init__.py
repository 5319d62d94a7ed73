"""Losses: how long the gradient is that the loss of one example sends into the network."""
