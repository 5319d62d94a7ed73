"""Suggested runs: five networks as people write them, and what `lipcert suggest` makes of them.

    python -m benchmarks.suggested_runs                       every network, method and ε
    python -m benchmarks.suggested_runs mlp cnn --epsilon 1   these
    python -m benchmarks.suggested_runs --update benchmarks/suggested_runs/results.md

Each network is trained by plain DP-SGD, by every mechanism as it comes, and as `suggest` proposes,
at several ε over several seeds; and the noise to signal that was predicted before a run is held
against the accuracy that it reached. Every run is a line of a journal, so that an interrupted
benchmark goes on where it ended.
"""
