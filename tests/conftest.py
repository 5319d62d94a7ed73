"""One thread per test process, since the processes already run in parallel; no cache of norms."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["LIPCERT_CACHE"] = "false"

settings.register_profile(
    "reproducible",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "reproducible"))
