"""The frames of the five kinds of phrases, and how a clock is read, as templates in three languages."""

from typing import NamedTuple


class PhraseTemplate(NamedTuple):
    """One template in three languages, in the notation of transformer.data.datasets.aligned_templates."""

    en: str
    de: str
    fr: str


FRAMES: dict[str, tuple[PhraseTemplate, ...]] = {
    "date": (
        PhraseTemplate(
            "{weekday} ,/comma the/the {day} of {month} {year}",
            "{weekday} ,/comma der/the {day} {month} {year}",
            "le/the {weekday} {day} {month} {year}",
        ),
        PhraseTemplate(
            "{month} the/the {day} ,/comma {year}",
            "der/the {day} {month} {year}",
            "le/the {day} {month} {year}",
        ),
        PhraseTemplate(
            "on/on {weekday} ,/comma the/the {day} of {month} {year}",
            "am/on {weekday} ,/comma dem/the {dative} {month} {year}",
            "le/the {weekday} {day} {month} {year}",
        ),
        PhraseTemplate(
            "since/since the/the {day} of {month} {year}",
            "seit/since dem/the {dative} {month} {year}",
            "depuis/since le/the {day} {month} {year}",
        ),
        PhraseTemplate(
            "before/before the/the {day} of {month} {year}",
            "vor/before dem/the {dative} {month} {year}",
            "avant/before le/the {day} {month} {year}",
        ),
        PhraseTemplate(
            "after/after the/the {day} of {month} {year}",
            "nach/after dem/the {dative} {month} {year}",
            "après/after le/the {day} {month} {year}",
        ),
    ),
    "time": (
        PhraseTemplate("{clock}", "{clock}", "{clock}"),
        PhraseTemplate("at/at {clock}", "um/at {clock}", "à/at {clock}"),
        PhraseTemplate("it/it is/is {clock}", "es/it ist/is {clock}", "il/it est/is {clock}"),
        PhraseTemplate("from/from {clock}", "ab/from {clock}", "dès/from {clock}"),
        PhraseTemplate("until/until {clock}", "bis/until {clock}", "jusqu'à/until {clock}"),
        PhraseTemplate("on/on {weekday} at/at {clock}", "am/on {weekday} um/at {clock}", "{weekday} à/at {clock}"),
    ),
    "number": (
        PhraseTemplate("{number}", "{number}", "{number}"),
        PhraseTemplate("exactly/how {number}", "genau/how {number}", "exactement/how {number}"),
        PhraseTemplate("about/how {number}", "ungefähr/how {number}", "environ/how {number}"),
        PhraseTemplate("almost/how {number}", "fast/how {number}", "presque/how {number}"),
        PhraseTemplate("more/how than/than {number}", "mehr/how als/than {number}", "plus/how de/than {number}"),
        PhraseTemplate("less/how than/than {number}", "weniger/how als/than {number}", "moins/how de/than {number}"),
    ),
    "amount": (
        PhraseTemplate("{amount}", "{nominative}", "{amount}"),
        PhraseTemplate("for/for {amount}", "für/for {accusative}", "pour/for {amount}"),
        PhraseTemplate("it/it costs/costs {amount}", "es/it kostet/costs {accusative}", "cela/it coûte/costs {amount}"),
    ),
    "quantity": (
        PhraseTemplate("{things}", "{nominative}", "{things}"),
        PhraseTemplate("for/for {things}", "für/for {accusative}", "pour/for {things}"),
        PhraseTemplate("without/without {things}", "ohne/without {accusative}", "sans/without {things}"),
        PhraseTemplate("with/with {things}", "mit/with {dative}", "avec/with {things}"),
    ),
}
"""The frames of each kind. A field such as {dative} is the phrase in that German case."""

_PAST = PhraseTemplate(
    "{minute} past/past {hour} {period}",
    "{minute} nach/past {hour} {period}",
    "{hour} {hours} {minute} {period}",
)
_TO = PhraseTemplate(
    "{minute} to/past {next} {period}",
    "{minute} vor/past {next} {period}",
    "{next} {next_hours} moins/past {minute} {period}",
)

SPOKEN: dict[int, PhraseTemplate] = {
    0: PhraseTemplate("{hour} o'clock/clock {period}", "{counted} Uhr/clock {period}", "{hour} {hours} {period}"),
    5: _PAST,
    10: _PAST,
    15: PhraseTemplate(
        "quarter/quarter past/past {hour} {period}",
        "Viertel/quarter nach/past {hour} {period}",
        "{hour} {hours} et/past quart/quarter {period}",
    ),
    20: _PAST,
    25: PhraseTemplate(
        "{minute} past/past {hour} {period}",
        "fünf/minute vor/minute halb/minute {next} {period}",
        "{hour} {hours} {minute} {period}",
    ),
    30: PhraseTemplate(
        "half/half past/past {hour} {period}",
        "halb/half {next} {period}",
        "{hour} {hours} et/past {half} {period}",
    ),
    35: PhraseTemplate(
        "{minute} to/past {next} {period}",
        "fünf/minute nach/minute halb/minute {next} {period}",
        "{next} {next_hours} moins/past {minute} {period}",
    ),
    40: _TO,
    45: PhraseTemplate(
        "quarter/quarter to/past {next} {period}",
        "Viertel/quarter vor/past {next} {period}",
        "{next} {next_hours} moins/past le quart/quarter {period}",
    ),
    50: _TO,
    55: _TO,
}
"""How multiples of five minutes are spoken; {counted} is "ein" where {hour} is "eins"."""

WHOLE: dict[int, PhraseTemplate] = {
    0: PhraseTemplate("midnight/hour", "Mitternacht/hour", "minuit/hour"),
    12: PhraseTemplate("noon/hour", "zwölf/hour Uhr/hour mittags/hour", "midi/hour"),
}
"""The two whole hours with a name of their own."""

DISPLAYED = PhraseTemplate("{hour} {minute} {period}", "{counted} Uhr {minute}", "{counted} {hours} {minute}")
"""How all other minutes are read: on a twelve-hour clock in English, a twenty-four-hour one in German and French."""
