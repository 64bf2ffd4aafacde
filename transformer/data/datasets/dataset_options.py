"""The options behind the name of a set that is made here, as in "copy/length=12,symbols=16"."""

from transformer.config import UserError, convert


def parse_int_options(name: str, options: str, example: str) -> dict[str, int]:
    """The numbers by key that options such as "length=12,symbols=16" give the set of this name.

    Raises:
        UserError: With an example of options, for a value that is no whole number.
    """
    values = {}
    for item in options.split(",") if options else ():
        key, _, number = item.partition("=")
        if not number.isdecimal():
            raise UserError(f"{name}: {item!r} must give a whole number, as in {name}/{example}")
        values[key] = convert(int, int(number[:99]), f"{name}: {key}")
    return values
