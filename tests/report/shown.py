"""What numbers in reports say, read as a person reads them."""

from fractions import Fraction

DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def number_of(text: str) -> Fraction:
    """The number that a text says: `3`, `1e-7`, `10⁶`, `4.81·10²²`."""
    head, _, exponent = text.rpartition("10")
    if exponent and exponent[0] in "⁰¹²³⁴⁵⁶⁷⁸⁹":
        factor = Fraction(head.removesuffix("·") or 1)
        return factor * Fraction(10) ** int(exponent.translate(DIGITS))
    return Fraction(text)
