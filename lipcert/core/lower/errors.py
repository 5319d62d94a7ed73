"""Exceptions by which lowering refuses a model."""


class Unsupported(ValueError):  # noqa: N818 (a verdict on the model, not a failure of the program)
    """The model contains something that is not understood exactly; one printable line.

    reason: the line without its beginning `where`. node: the node of the file that it refers to.
    """

    def __init__(self, reason: str, where: str = "", node: object = None) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason
        self.node = node


class MixingError(Unsupported):
    """Examples of a batch influence each other."""


class ReadsAcrossError(MixingError):
    """A node sums, sorts or normalises over the batch, which would mean nothing for one example."""
