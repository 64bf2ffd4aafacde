"""The five kinds of phrases: their random values, and how a value is written in two languages.

Every kind draws a value and a frame, and both languages are written from them, so that the target is a function of the
source text and the language. Times of day follow the twelve-hour clock in English: spoken in steps of five minutes
("half past three", "halb vier", "trois heures et demie"), else read from a display.
"""

import datetime
import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from transformer.data.datasets.aligned_templates import AlignedPair, Span, align_spans, fill_template, merge_spans
from transformer.data.phrases import lexicon
from transformer.data.phrases.number_words import (
    LARGEST,
    cardinal,
    feminine_form,
    number_spans,
    ordinal,
    year_spans,
)
from transformer.data.phrases.templates import DISPLAYED, FRAMES, SPOKEN, WHOLE, PhraseTemplate

Value = tuple[Any, ...]
Fields = dict[str, list[Span]]

FIRST_YEAR, LAST_YEAR = 1700, 2099


class PhraseKind(NamedTuple):
    """How one kind of phrase is drawn and written."""

    draw: Callable[[random.Random], tuple[Value, int]]
    """A function that samples a value and the index of a frame."""
    write: Callable[[Value, int, str], AlignedPair]
    """A function (value, frame, language) to the phrase."""


def _compose_pair(frame: PhraseTemplate, language: str, source: Fields, target: Fields) -> AlignedPair:
    return align_spans(fill_template(frame.en, source), fill_template(getattr(frame, language), target))


def _draw_magnitude(generator: random.Random, digits: int) -> int:
    """Sample a number from 0 whose number of digits is uniform from 1 to `digits`."""
    count = generator.randint(1, digits)
    return generator.randrange(10 ** (count - 1) if count > 1 else 0, 10**count)


def _draw_count(generator: random.Random, digits: int) -> int:
    """Sample a number from 1 for a noun: one in five is 1, as only the singular shows gender and case."""
    return 1 if generator.random() < 0.2 else max(1, _draw_magnitude(generator, digits))


def _draw_date(generator: random.Random) -> tuple[Value, int]:
    first = datetime.date(FIRST_YEAR, 1, 1).toordinal()
    last = datetime.date(LAST_YEAR, 12, 31).toordinal()
    day = datetime.date.fromordinal(generator.randint(first, last))
    return (day.year, day.month, day.day), generator.randrange(len(FRAMES["date"]))


def _write_date(value: Value, frame: int, language: str) -> AlignedPair:
    date = datetime.date(*value)
    source_year, target_year = year_spans(date.year, language)
    source: Fields = {
        "weekday": [(lexicon.weekday_name(date.weekday(), "en"), "weekday")],
        "day": [(ordinal(date.day, "en"), "day")],
        "month": [(lexicon.month_name(date.month, "en"), "month")],
        "year": source_year,
    }
    day = ordinal(date.day, language)
    if language == "fr" and date.day > 1:
        day = cardinal(date.day, "fr")
    target: Fields = {
        "weekday": [(lexicon.weekday_name(date.weekday(), language), "weekday")],
        "day": [(day, "day")],
        "dative": [(day + "n", "day")],
        "month": [(lexicon.month_name(date.month, language), "month")],
        "year": target_year,
    }
    return _compose_pair(FRAMES["date"][frame], language, source, target)


def _draw_time(generator: random.Random) -> tuple[Value, int]:
    # The last frame has a weekday; each of the seven counts as a separate frame.
    return divmod(generator.randrange(24 * 60), 60), generator.randrange(len(FRAMES["time"]) - 1 + 7)


def round_down_to_five_minutes(time: Value) -> Value:
    """Return the last time of day, at or before `time`, that is spoken in steps of five minutes."""
    hour, minute = time
    return hour, minute - minute % 5


def _english_clock_fields(hour: int, minute: int) -> Fields:
    words = cardinal(minute, "en")
    return {
        "hour": [(cardinal((hour - 1) % 12 + 1, "en"), "hour")],
        "next": [(cardinal(hour % 12 + 1, "en"), "hour")],
        "minute": [(words, "minute")],
        "period": [(lexicon.day_period_phrase(hour, "en"), "period")],
    }


def _german_clock_fields(hour: int, minute: int) -> Fields:
    twelve = (hour - 1) % 12 + 1
    return {
        "hour": [(cardinal(twelve, "de"), "hour")],
        "counted": [("ein" if twelve == 1 else cardinal(twelve, "de"), "hour")],
        "next": [(cardinal(hour % 12 + 1, "de"), "hour")],
        "minute": [(cardinal(minute, "de"), "minute")],
        "period": [(lexicon.day_period_phrase(hour, "de"), "period")],
    }


def _french_hour_spans(hour: int) -> tuple[list[Span], list[Span]]:
    if hour % 12 == 0:
        return [("midi" if hour == 12 else "minuit", "hour")], []
    return [(feminine_form(cardinal(hour % 12, "fr")), "hour")], [("heures" if hour % 12 > 1 else "heure", "clock")]


def _french_clock_fields(hour: int, minute: int) -> Fields:
    this_hour, hours = _french_hour_spans(hour)
    next_hour, next_hours = _french_hour_spans(hour + 1)
    is_noon_or_midnight = not (hours if minute <= 30 else next_hours)
    return {
        "hour": this_hour,
        "hours": hours,
        "next": next_hour,
        "next_hours": next_hours,
        "minute": [(cardinal(minute, "fr"), "minute")],
        "half": [("demi" if is_noon_or_midnight else "demie", "half")],
        "period": [] if is_noon_or_midnight else [(lexicon.day_period_phrase(hour, "fr"), "period")],
    }


def _spoken_time_spans(hour: int, minute: int, language: str) -> tuple[list[Span], list[Span]]:
    to = minute > 30
    frame = WHOLE[hour] if not minute and hour in WHOLE else SPOKEN[minute]
    source = fill_template(frame.en, _english_clock_fields(hour, 60 - minute if to else minute))
    if language == "de":
        if minute in (25, 35):
            # "twenty-five past" and "fünf vor halb" correspond only as a whole.
            source = [(text, "minute" if slot == "past" else slot) for text, slot in source]
        return source, fill_template(frame.de, _german_clock_fields(hour, 60 - minute if to else minute))
    target = fill_template(
        frame.fr,
        _french_clock_fields(hour, minute) | {"minute": [(cardinal(60 - minute if to else minute, "fr"), "minute")]},
    )
    if not any(slot == "period" for _, slot in target):
        # "midi" and "minuit" also express the part of the day.
        source = [(text, "hour" if slot == "period" else slot) for text, slot in source]
    return source, target


def _displayed_time_spans(hour: int, minute: int, language: str) -> tuple[list[Span], list[Span]]:
    fields = _english_clock_fields(hour, minute)
    if minute < 10:
        fields["minute"] = [(f"oh {cardinal(minute, 'en')}", "minute")]
    # The part of the day decides which of twenty-four hours is meant.
    fields["period"] = merge_spans(fields["period"], "hour")
    if language == "de":
        target_fields: Fields = {
            "counted": [("ein" if hour == 1 else cardinal(hour, "de"), "hour")],
            "minute": [(cardinal(minute, "de"), "minute")],
        }
        return fill_template(DISPLAYED.en, fields), fill_template(DISPLAYED.de, target_fields)
    target_fields = {
        "counted": [(feminine_form(cardinal(hour, "fr")), "hour")],
        "hours": [("heures" if hour > 1 else "heure", None)],
        "minute": [(feminine_form(cardinal(minute, "fr")), "minute")],
    }
    return fill_template(DISPLAYED.en, fields), fill_template(DISPLAYED.fr, target_fields)


def _write_time(value: Value, frame: int, language: str) -> AlignedPair:
    hour, minute = value
    row = min(frame, len(FRAMES["time"]) - 1)
    day = frame - row
    source, target = (_displayed_time_spans if minute % 5 else _spoken_time_spans)(hour, minute, language)
    return _compose_pair(
        FRAMES["time"][row],
        language,
        {"clock": source, "weekday": [(lexicon.weekday_name(day, "en"), "weekday")]},
        {"clock": target, "weekday": [(lexicon.weekday_name(day, language), "weekday")]},
    )


def _draw_number(generator: random.Random) -> tuple[Value, int]:
    value = _draw_magnitude(generator, len(str(LARGEST)))
    # "More than one" would need an elision in French, and nothing is less than zero.
    return (value,), generator.randrange(len(FRAMES["number"])) if value > 1 else 0


def _write_number(value: Value, frame: int, language: str) -> AlignedPair:
    source, target = number_spans(value[0], language)
    return _compose_pair(FRAMES["number"][frame], language, {"number": source}, {"number": target})


def _draw_amount(generator: random.Random) -> tuple[Value, int]:
    code = generator.choice(tuple(lexicon.CURRENCIES))
    divided = lexicon.CURRENCIES[code][2] is not None and generator.random() < 0.5
    major = _draw_count(generator, 3 if divided else len(str(LARGEST)))
    return (code, major, generator.randint(1, 99) if divided else 0), generator.randrange(len(FRAMES["amount"]))


def _currency_spans(code: str, language: str, count: int, noun_first: bool, one_slot: bool) -> list[Span]:
    """Return the words of a currency; those around the noun fill the slot "issuer", or all one slot if `one_slot`."""
    words = lexicon.currency_name(code, language, min(count, 2)).split()
    if one_slot or len(words) == 1:
        return [(word, "currency") for word in words]
    places = ["currency"] + ["issuer"] * (len(words) - 1)
    return list(zip(words, places if noun_first else reversed(places), strict=True))


def _german_count_spans(count: int, gender: str, case: str, slot: str, spans: list[Span]) -> list[Span]:
    return [(lexicon.ARTICLES[case][gender], slot)] if count == 1 else spans


def _inflect_german_currency(code: str, count: int, gender: str, case: str, spans: list[Span]) -> list[Span]:
    """Return the name in a case: only a masculine adjective in the accusative singular differs."""
    if count == 1 and gender == "m" and case == "accusative" and len(spans) == 2:
        (adjective, slot), noun = spans
        if adjective != "Schweizer":
            return [(adjective.removesuffix("er") + "en", slot), noun]
    return spans


def _write_amount(value: Value, frame: int, language: str) -> AlignedPair:
    code, major, minor = value
    german_gender, french_gender, subunit = lexicon.CURRENCIES[code]
    source, counted = number_spans(major, language, gender=french_gender, slot="major-")
    # "US-Dollar" is one word: then the English words fill one slot.
    one_slot = len(lexicon.currency_name(code, language, 2).split()) == 1
    source = source + _currency_spans(code, "en", major, noun_first=False, one_slot=one_slot)
    name = _currency_spans(code, language, major, noun_first=language == "fr", one_slot=one_slot)
    source_minor, target_minor = number_spans(minor, language, slot="minor-")
    before: list[Span] = [("und" if language == "de" else "et", "plus")]
    after: list[Span] = []
    if minor and subunit is not None:
        source = [*source, ("and", "plus"), *source_minor, (subunit.en[minor > 1], "subunit")]
        after = [(getattr(subunit, language)[minor > 1], "subunit")]
    if language == "fr":
        target: Fields = {"amount": counted + name + (before + target_minor + after if after else [])}
    else:
        target = {
            case: _german_count_spans(major, german_gender, case, "major-", counted)
            + _inflect_german_currency(code, major, german_gender, case, name)
            + (before + _german_count_spans(minor, "m", case, "minor-", target_minor) + after if after else [])
            for case in ("nominative", "accusative")
        }
    return _compose_pair(FRAMES["amount"][frame], language, {"amount": source}, target)


def _draw_quantity(generator: random.Random) -> tuple[Value, int]:
    count = _draw_count(generator, 3)
    size, color = generator.choice(((1, 1), (1, 0), (0, 1)))
    return (
        count,
        generator.randrange(len(lexicon.SIZES)) if size else -1,
        generator.randrange(len(lexicon.COLORS)) if color else -1,
        generator.randrange(len(lexicon.THINGS)),
    ), generator.randrange(len(FRAMES["quantity"]))


def _german_thing_spans(
    count: int,
    adjectives: list[tuple[lexicon.Adjective, str]],
    thing: lexicon.CountableNoun,
    counted: list[Span],
    case: str,
) -> list[Span]:
    gender = thing.de[0]
    ending = lexicon.ENDINGS[case]["plural" if count > 1 else gender]
    noun = thing.de[1] if count == 1 else thing.dative_plural() if case == "dative" else thing.de[2]
    return [
        *_german_count_spans(count, gender, case, "number-", counted),
        *((adjective.de + ending, slot) for adjective, slot in adjectives),
        (noun, "thing"),
    ]


def _write_quantity(value: Value, frame: int, language: str) -> AlignedPair:
    count, size, color, index = value
    thing = lexicon.THINGS[index]
    sizes = [(lexicon.SIZES[size], "size")] if size >= 0 else []
    colors = [(lexicon.COLORS[color], "color")] if color >= 0 else []
    gender = thing.fr[0]
    source, counted = number_spans(count, language, gender=gender)
    source = [
        *source,
        *((adjective.en, slot) for adjective, slot in sizes + colors),
        (thing.en[count > 1], "thing"),
    ]
    if language == "de":
        target = {case: _german_thing_spans(count, sizes + colors, thing, counted, case) for case in lexicon.ARTICLES}
    else:
        agree = functools.partial(lexicon.Adjective.french, gender=gender, plural=count > 1)
        target = {
            "things": [
                *counted,
                *((agree(adjective), slot) for adjective, slot in sizes),
                (thing.fr[1 + (count > 1)], "thing"),
                *((agree(adjective), slot) for adjective, slot in colors),
            ]
        }
    return _compose_pair(FRAMES["quantity"][frame], language, {"things": source}, target)


KINDS: dict[str, PhraseKind] = {
    "date": PhraseKind(_draw_date, _write_date),
    "time": PhraseKind(_draw_time, _write_time),
    "number": PhraseKind(_draw_number, _write_number),
    "amount": PhraseKind(_draw_amount, _write_amount),
    "quantity": PhraseKind(_draw_quantity, _write_quantity),
}
