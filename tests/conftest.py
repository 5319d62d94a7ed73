"""One thread per test process, since the processes already run in parallel; no cache of norms."""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["LIPCERT_CACHE"] = "false"
