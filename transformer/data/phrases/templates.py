"""The frames of the five kinds of phrase, and how a clock is read, as templates in three languages."""

from typing import NamedTuple


class Frame(NamedTuple):
    """One template in three languages, in the notation of `slots`."""

    en: str
    de: str
    fr: str


FRAMES: dict[str, tuple[Frame, ...]] = {
    "date": (
        Frame(
            "{weekday} ,/comma the/the {day} of {month} {year}",
            "{weekday} ,/comma der/the {day} {month} {year}",
            "le/the {weekday} {day} {month} {year}",
        ),
        Frame(
            "{month} the/the {day} ,/comma {year}",
            "der/the {day} {month} {year}",
            "le/the {day} {month} {year}",
        ),
        Frame(
            "on/on {weekday} ,/comma the/the {day} of {month} {year}",
            "am/on {weekday} ,/comma dem/the {dative} {month} {year}",
            "le/the {weekday} {day} {month} {year}",
        ),
        Frame(
            "since/since the/the {day} of {month} {year}",
            "seit/since dem/the {dative} {month} {year}",
            "depuis/since le/the {day} {month} {year}",
        ),
        Frame(
            "before/before the/the {day} of {month} {year}",
            "vor/before dem/the {dative} {month} {year}",
            "avant/before le/the {day} {month} {year}",
        ),
        Frame(
            "after/after the/the {day} of {month} {year}",
            "nach/after dem/the {dative} {month} {year}",
            "après/after le/the {day} {month} {year}",
        ),
    ),
    "time": (
        Frame("{clock}", "{clock}", "{clock}"),
        Frame("at/at {clock}", "um/at {clock}", "à/at {clock}"),
        Frame("it/it is/is {clock}", "es/it ist/is {clock}", "il/it est/is {clock}"),
        Frame("from/from {clock}", "ab/from {clock}", "dès/from {clock}"),
        Frame("until/until {clock}", "bis/until {clock}", "jusqu'à/until {clock}"),
        Frame("on/on {weekday} at/at {clock}", "am/on {weekday} um/at {clock}", "{weekday} à/at {clock}"),
    ),
    "number": (
        Frame("{number}", "{number}", "{number}"),
        Frame("exactly/how {number}", "genau/how {number}", "exactement/how {number}"),
        Frame("about/how {number}", "ungefähr/how {number}", "environ/how {number}"),
        Frame("almost/how {number}", "fast/how {number}", "presque/how {number}"),
        Frame("more/how than/than {number}", "mehr/how als/than {number}", "plus/how de/than {number}"),
        Frame("less/how than/than {number}", "weniger/how als/than {number}", "moins/how de/than {number}"),
    ),
    "amount": (
        Frame("{amount}", "{nominative}", "{amount}"),
        Frame("for/for {amount}", "für/for {accusative}", "pour/for {amount}"),
        Frame("it/it costs/costs {amount}", "es/it kostet/costs {accusative}", "cela/it coûte/costs {amount}"),
    ),
    "quantity": (
        Frame("{things}", "{nominative}", "{things}"),
        Frame("for/for {things}", "für/for {accusative}", "pour/for {things}"),
        Frame("without/without {things}", "ohne/without {accusative}", "sans/without {things}"),
        Frame("with/with {things}", "mit/with {dative}", "avec/with {things}"),
    ),
}
"""By kind: its frames. A field such as {dative} is the phrase in that German case."""

_PAST = Frame(
    "{minute} past/past {hour} {period}",
    "{minute} nach/past {hour} {period}",
    "{hour} {hours} {minute} {period}",
)
_TO = Frame(
    "{minute} to/past {next} {period}",
    "{minute} vor/past {next} {period}",
    "{next} {next_hours} moins/past {minute} {period}",
)

SPOKEN: dict[int, Frame] = {
    0: Frame("{hour} o'clock/clock {period}", "{counted} Uhr/clock {period}", "{hour} {hours} {period}"),
    5: _PAST,
    10: _PAST,
    15: Frame(
        "quarter/quarter past/past {hour} {period}",
        "Viertel/quarter nach/past {hour} {period}",
        "{hour} {hours} et/past quart/quarter {period}",
    ),
    20: _PAST,
    25: Frame(
        "{minute} past/past {hour} {period}",
        "fünf/minute vor/minute halb/minute {next} {period}",
        "{hour} {hours} {minute} {period}",
    ),
    30: Frame(
        "half/half past/past {hour} {period}",
        "halb/half {next} {period}",
        "{hour} {hours} et/past {half} {period}",
    ),
    35: Frame(
        "{minute} to/past {next} {period}",
        "fünf/minute nach/minute halb/minute {next} {period}",
        "{next} {next_hours} moins/past {minute} {period}",
    ),
    40: _TO,
    45: Frame(
        "quarter/quarter to/past {next} {period}",
        "Viertel/quarter vor/past {next} {period}",
        "{next} {next_hours} moins/past le quart/quarter {period}",
    ),
    50: _TO,
    55: _TO,
}
"""How the minutes that five divides are spoken; {counted} is "ein", where {hour} is "eins"."""

WHOLE: dict[int, Frame] = {
    0: Frame("midnight/hour", "Mitternacht/hour", "minuit/hour"),
    12: Frame("noon/hour", "zwölf/hour Uhr/hour mittags/hour", "midi/hour"),
}
"""The two whole hours that have a name."""

DISPLAYED = Frame("{hour} {minute} {period}", "{counted} Uhr {minute}", "{counted} {hours} {minute}")
"""How every other minute is read: by twelve hours in English, by twenty-four in German and French."""
