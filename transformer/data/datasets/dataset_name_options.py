"""Parse the options in the name of a generated data set, as in "copy/length=12,num_symbols=16"."""

from transformer.config import UserError, convert_value


def parse_int_options(name: str, options: str, example: str) -> dict[str, int]:
    """Parse options such as "length=12,num_symbols=16".

    Args:
        name: The name of the data set, for the message.
        options: The options; "" for none.
        example: An example of options, for the message.

    Raises:
        UserError: If a value is not a whole number.
    """
    values = {}
    for item in options.split(",") if options else ():
        key, _, number = item.partition("=")
        if not number.isdecimal():
            raise UserError(f"{name}: {item!r} must give a whole number, as in {name}/{example}")
        values[key] = convert_value(int, int(number[:99]), f"{name}: {key}")
    return values
