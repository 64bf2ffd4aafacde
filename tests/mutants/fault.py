"""A planted fault: one small change of one file, and the tests that own the subject."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fault:
    """`old` stands exactly once in `file`, and `new` in its place is the fault.

    `suffers` says in a sentence what a user would suffer. `tests` are files, or nodes of pytest (file::test), that
    could notice it, the likeliest first.
    """

    name: str
    file: str
    old: str
    new: str
    suffers: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        """The folder of the package that the file is in."""
        return self.file.split("/")[1].removesuffix(".py")

    def planted_in(self, text: str) -> str:
        """The file's text with the fault.

        Errors: ValueError naming the fault where `old` does not stand there exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"fault {self.name!r}: its old text stands {count} times in {self.file}, and must stand there once: "
                f"{self.old!r}; say what stands there today"
            )
        return text.replace(self.old, self.new)
