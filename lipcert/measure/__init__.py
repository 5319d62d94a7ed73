"""Measure: what both audits and private training compute of a network in torch.

It runs the steps of a program in torch (`lowering`), measures per-example gradients
(`gradient_norms`), and compares a live module with the network that was bounded (`agreement`).
"""
