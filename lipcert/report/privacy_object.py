"""The JSON object `privacy`: the same in `lipcert.privacy/1` and in an analysis.

What enters: an account. What leaves: names that are extended, never renamed; null for "no finite
ε".
"""

from __future__ import annotations

from lipcert.privacy.account import Account
from lipcert.report.privacy_statement import statement_rows


def privacy_object(account: Account, allocation: str | None) -> dict[str, object]:
    """The object `privacy`, here and in an analysis."""
    plan, zcdp = account.plan, account.zcdp
    return {
        "epsilon": account.epsilon,
        "delta": plan.delta,
        "noise_multiplier": account.noise_multiplier,
        "allocation": allocation,
        "sampling": plan.sampling.value,
        "steps": plan.releases,
        "accountant": account.accountant.value,
        "neighbours": plan.neighbours.value,
        "dataset_size": plan.dataset_size,
        "dataset_size_from": plan.dataset_size_from.value,
        "batch_size": plan.batch,
        "participations": plan.participations,
        "estimates": {
            estimate.accountant.value: estimate.epsilon for estimate in account.estimates
        },
        "poisson_epsilon": account.poisson_epsilon,
        "claimed_epsilon": account.claimed_epsilon,
        "zcdp": zcdp
        and {
            "rho_per_release": zcdp.rho_per_release.value,
            "rho": zcdp.rho.value,
            "epsilon": zcdp.epsilon.value,
        },
        "statement": dict(statement_rows(account)),
    }
