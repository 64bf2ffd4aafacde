"""Whole numbers and years in English, German and French words, split into aligned slots.

The words below one hundred (German: one thousand) are those of num2words; the rules that join them are in this module,
since the slots need the parts. English is written with "and" and no comma, German with "ein" before "hundert" and
"tausend", French in the traditional spelling (hyphens below one hundred, spaces around "et").
"""

import functools

from transformer.data.datasets.aligned_templates import Span, merge_spans

LARGEST = 999_999


@functools.cache
def _cardinals(language: str) -> tuple[str, ...]:
    from num2words import num2words  # imported here, for the tables of all its languages take a while to load

    return tuple(num2words(number, lang=language) for number in range(1000 if language == "de" else 100))


@functools.cache
def _ordinals(language: str) -> tuple[str, ...]:
    from num2words import num2words

    return tuple(num2words(number, lang=language, to="ordinal") for number in range(32))


def cardinal(number: int, language: str) -> str:
    """Return the cardinal of a number from 0 to 99 as in counting: German "eins", French masculine "un"."""
    return _cardinals(language)[number]


def ordinal(number: int, language: str) -> str:
    """Return the ordinal of a number from 0 to 31; German ones end in -e, as after "der"."""
    return _ordinals(language)[number]


def feminine_form(words: str) -> str:
    """Return French words of a number as before a feminine noun: a final "un" becomes "une"."""
    return words + "e" if words == "un" or words.endswith((" un", "-un")) else words


def german_number(number: int) -> str:
    """Write a number as one German word: 421305 is "vierhunderteinundzwanzigtausenddreihundertfünf"."""
    thousands, remainder = divmod(number, 1000)
    if not thousands:
        return _cardinals("de")[remainder]
    head = _cardinals("de")[thousands]
    head = head.removesuffix("s") if head.endswith("eins") else head
    return f"{head}tausend{_cardinals('de')[remainder] if remainder else ''}"


def _english_group_spans(number: int, slot: str) -> list[Span]:
    hundreds, remainder = divmod(number, 100)
    spans: list[Span] = []
    if hundreds:
        # French says plain "cent" for "one hundred": both English words are then one slot.
        spans.append((cardinal(hundreds, "en"), f"{slot}hundreds" if hundreds > 1 else f"{slot}hundred"))
        spans.append(("hundred", f"{slot}hundred"))
        if remainder:
            spans.append(("and", None))
    if remainder:
        spans.append((cardinal(remainder, "en"), f"{slot}tens"))
    return spans


def _english_spans(number: int, slot: str) -> list[Span]:
    thousands, remainder = divmod(number, 1000)
    if not number:
        return [(cardinal(0, "en"), f"{slot}tens")]
    spans: list[Span] = []
    if thousands:
        head = _english_group_spans(thousands, f"{slot}thousand-")
        spans = merge_spans(head, f"{slot}thousand") if thousands == 1 else head
        spans.append(("thousand", f"{slot}thousand"))
        if 0 < remainder < 100:
            spans.append(("and", None))
    return spans + _english_group_spans(remainder, slot)


def _french_group_spans(number: int, slot: str, final: bool) -> list[Span]:
    hundreds, remainder = divmod(number, 100)
    spans: list[Span] = []
    if hundreds > 1:
        spans.append((cardinal(hundreds, "fr"), f"{slot}hundreds"))
    if hundreds:
        spans.append(("cents" if hundreds > 1 and not remainder and final else "cent", f"{slot}hundred"))
    if remainder:
        words = cardinal(remainder, "fr") if final or remainder != 80 else "quatre-vingt"
        spans.append((words, f"{slot}tens"))
    return spans


def _french_spans(number: int, slot: str, gender: str) -> list[Span]:
    thousands, remainder = divmod(number, 1000)
    if not number:
        return [(cardinal(0, "fr"), f"{slot}tens")]
    spans: list[Span] = []
    if thousands:
        # "cent" and "vingt" take no plural s before "mille", and "un mille" is never said.
        spans = _french_group_spans(thousands, f"{slot}thousand-", final=False) if thousands > 1 else []
        spans.append(("mille", f"{slot}thousand"))
    spans += _french_group_spans(remainder, slot, final=True)
    if gender == "f" and remainder:
        words, label = spans[-1]
        spans[-1] = (feminine_form(words), label)
    return spans


def number_spans(
    value: int, language: str, *, gender: str = "m", slot: str = "number-"
) -> tuple[list[Span], list[Span]]:
    """Return the spans of a number from 0 to 999,999 in English and in another language.

    French parts correspond one by one ("hundred" and "cent"); a German number is one word, so all its English words
    share one slot.

    Args:
        value: The number.
        language: "de" or "fr".
        gender: The gender of the French noun that is counted.
        slot: The prefix of the slots.

    Raises:
        ValueError: If the number is out of range.
    """
    if not 0 <= value <= LARGEST:
        raise ValueError(f"value={value} is out of range: numbers go from 0 to {LARGEST}")
    source = _english_spans(value, slot)
    if language == "de":
        return merge_spans(source, slot), [(german_number(value), slot)]
    return source, _french_spans(value, slot, gender)


def year_spans(value: int, language: str) -> tuple[list[Span], list[Span]]:
    """Return the spans of a year from 1100 to 2099 in English and in another language ("de" or "fr").

    English and German count hundreds ("nineteen oh five", "neunzehnhundertfünf"); from 2000 on German counts thousands.
    French "cent" and "quatre-vingt" have no s, as in ordinals.

    Raises:
        ValueError: If the year is out of range.
    """
    if not 1100 <= value <= 2099:
        raise ValueError(f"value={value} is out of range: years go from 1100 to 2099")
    century, remainder = divmod(value, 100)
    if value < 2010 and century == 20:
        source: list[Span] = [("two thousand", "century")]
        if remainder:
            source += [("and", None), (cardinal(remainder, "en"), "year")]
    elif not remainder:
        source = [(f"{cardinal(century, 'en')} hundred", "century")]
    else:
        source = [(cardinal(century, "en"), "century")]
        source.append((cardinal(remainder, "en") if remainder > 9 else f"oh {cardinal(remainder, 'en')}", "year"))
    if language == "de":
        hundreds = f"{cardinal(century, 'de')}hundert" if century != 20 else "zweitausend"
        return merge_spans(source, "year"), [(hundreds + (cardinal(remainder, "de") if remainder else ""), "year")]
    hundreds = " ".join(text for text, _ in _french_spans(century * 100, "", "m")).removesuffix("s")
    target: list[Span] = [(hundreds, "century")]
    if remainder:
        target.append((cardinal(remainder, "fr") if remainder != 80 else "quatre-vingt", "year"))
    return source, target
