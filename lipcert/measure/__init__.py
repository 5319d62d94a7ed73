"""Measure: what audits and private training both do with a network in torch.

It runs the steps of a program in torch (`lowering`), measures gradients of single examples
(`gradient_norms`), and compares a live module with the network that was bounded (`agreement`).
"""
