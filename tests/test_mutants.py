"""Every rule has a mutant of its own code that makes a bound too small, and a test that kills it.

`python -m tests.test_mutants` prints the list: rule, mutant, killed by. A mutant is one edit of the
source of one function of the core (a factor of 0.9, a dropped term, a max that becomes a min, a
rounding turned round, a hypothesis that is not checked); its killer is an ordinary test of this
suite, or an attack of `weakenings.oracles` or `weakenings.line_oracles`. What every answer of every
rule loses where it is halved, `core.rules.test_mutants` sees.
"""

import sys
from pathlib import Path

import pytest

import lipcert.core
from lipcert.core.losses import KINDS
from lipcert.core.rules import STEPS
from tests.weakenings import line_oracles, oracles
from tests.weakenings.lines import LINES
from tests.weakenings.mutation import Kill, Mutation, found, killed_by
from tests.weakenings.numbers import NUMBERS
from tests.weakenings.proofs import PROOFS
from tests.weakenings.rules import RULES

MUTATIONS = [*RULES, *PROOFS, *LINES, *NUMBERS]
ROOT = Path(lipcert.core.__file__).parent
FOLDERS = ("rules", "norms", "forms", "lines", "losses", "accounting")


@pytest.mark.sample(40)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda item: f"{item.rule} {item}"[:90])
def test_every_mutant_is_killed(mutation: Mutation) -> None:
    assert killed_by(mutation) is not None


ATTACKS = {
    str(m.killer): m.killer
    for m in MUTATIONS
    if m.killer.test.__module__ in {oracles.__name__, line_oracles.__name__}
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_what_kills_mutants_lets_the_core_live(attack: Kill) -> None:
    """Other killers are tests, which run where they stand."""
    assert attack.failure() is None


def test_every_kind_of_step_has_a_mutant() -> None:
    assert {mutation.of for mutation in RULES} - {""} == set(STEPS)


def test_every_loss_has_a_mutant() -> None:
    assert {mutation.of for mutation in NUMBERS} - {""} == set(KINDS)


def test_every_module_of_rules_and_proofs_has_a_mutant() -> None:
    """And so has every module between them and the claims of a certificate."""
    modules = {
        f"{folder}.{path.stem}" for folder in FOLDERS for path in (ROOT / folder).glob("*.py")
    }
    modules = {name for name in modules if not name.endswith("__init__")}
    modules |= {"check", "claims", "clips", "paths"}
    modules |= {"arithmetic", "interval", "exponential"}
    weakened = {mutation.rule.split(":")[0] for mutation in MUTATIONS}
    assert not modules - weakened


def test_what_certificates_are_accounted_by_has_mutants() -> None:
    """The functions that the checker asks."""
    asked = {
        "accounting.account:epsilon_upper",
        "accounting.gaussian:gaussian_epsilon",
        "accounting.poisson:poisson_epsilon",
        "accounting.renyi:poisson_renyi_epsilon",
        "accounting.renyi:without_replacement_epsilon",
        "claims:effective_multiplier",
        "claims:sensitivity_up",
        "claims:total_sensitivity",
    }
    assert asked <= {mutation.rule for mutation in MUTATIONS}


def test_a_mutant_of_what_is_not_there_is_refused() -> None:
    """A text that was edited away would be a mutant that is never made."""
    item = MUTATIONS[0]
    with pytest.raises(ValueError, match="once"):
        killed_by(Mutation(item.rule, "no such text", "", item.killer))
    assert found(item.rule).__code__.co_filename.endswith(".py")


def main() -> int:
    """The list as a table; 1 where a mutant survives."""
    survivors = 0
    sys.stdout.write("| rule | of | mutant | killed by |\n| --- | --- | --- | --- |\n")
    for mutation in MUTATIONS:
        reason = killed_by(mutation)
        survivors += reason is None
        killer = "SURVIVED" if reason is None else str(mutation.killer)
        cells = (mutation.rule, mutation.of, f"`{mutation}`", killer)
        sys.stdout.write("| " + " | ".join(cells) + " |\n")
    sys.stdout.write(f"\n{len(MUTATIONS)} mutants, {survivors} survive\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
