"""The digits gap: what private training on 1,437 small images loses, and what wins it back.

    python -m benchmarks.digits_gap                          every row
    python -m benchmarks.digits_gap linear-hog-clip          this row
    python -m benchmarks.digits_gap --update [ROW …]         into results.md and page.md

A row is one private run, repeated over seeds: how images enter, which network, which mechanism,
which optimizer. All are within the same ε; rows differ from the one they are compared with by as
little as may be.
"""
