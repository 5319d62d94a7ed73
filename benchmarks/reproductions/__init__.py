"""Numbers that the papers print, measured again: what is reproduced, what is not, and what fails.

    python -m benchmarks.reproductions                     the quick parts, seconds
    python -m benchmarks.reproductions guo theorem-1       these parts
    python -m benchmarks.reproductions --update benchmarks/reproductions/results.md [PART …]

A part is a function that measures and leaves rows of claim, measurement and verdict. The verdict is
decided by the code of the part, from the measured numbers. Seeds are fixed.
"""
