"""The words of the phrases: calendar and money from Babel's locale data, and nouns with adjectives.

Gender is "m", "f" or "n". German cases are "nominative", "accusative" and "dative".
"""

import functools
from typing import NamedTuple

from babel import Locale
from babel.numbers import get_currency_name

PHRASE_LANGUAGES = ("de", "fr")

ARTICLES = {
    "nominative": {"m": "ein", "f": "eine", "n": "ein"},
    "accusative": {"m": "einen", "f": "eine", "n": "ein"},
    "dative": {"m": "einem", "f": "einer", "n": "einem"},
}
"""German "ein" by case and gender."""

ENDINGS = {
    "nominative": {"m": "er", "f": "e", "n": "es", "plural": "e"},
    "accusative": {"m": "en", "f": "e", "n": "es", "plural": "e"},
    "dative": {"m": "en", "f": "en", "n": "en", "plural": "en"},
}
"""The ending of a German adjective after "ein", and in the plural after a number."""


@functools.cache
def month_name(index: int, language: str) -> str:
    """Return the name of month 1 to 12, as written inside a date."""
    return Locale(language).months["format"]["wide"][index]


@functools.cache
def weekday_name(index: int, language: str) -> str:
    """Return the name of a weekday from 0 (Monday), as written inside a date."""
    return Locale(language).days["format"]["wide"][index]


@functools.cache
def day_period_phrase(hour: int, language: str) -> str:
    """Return the words after a time that say its part of the day, such as "in the afternoon", for hour 0 to 23.

    From one to noon English says "in the morning", and in the hour after midnight "at night".
    """
    names = Locale(language).day_periods["format"]["wide"]
    if language == "en":
        name = (
            "night1"
            if hour == 0 or hour >= 21
            else _choose_by_hour(hour, (12, "morning1"), (18, "afternoon1"), (21, "evening1"))
        )
    elif language == "de":
        name = _choose_by_hour(
            hour,
            (5, "night1"),
            (10, "morning1"),
            (12, "morning2"),
            (13, "afternoon1"),
            (18, "afternoon2"),
            (24, "evening1"),
        )
    else:
        name = _choose_by_hour(hour, (4, "night1"), (12, "morning1"), (18, "afternoon1"), (24, "evening1"))
    return names[name].replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


def _choose_by_hour(hour: int, *bounds: tuple[int, str]) -> str:
    return next(name for end, name in bounds if hour < end)


class CurrencySubunit(NamedTuple):
    """The subunit of a currency: singular and plural by language; in German all are masculine."""

    en: tuple[str, str]
    de: tuple[str, str]
    fr: tuple[str, str]


_CENT = CurrencySubunit(("cent", "cents"), ("Cent", "Cent"), ("cent", "cents"))

CURRENCIES: dict[str, tuple[str, str, CurrencySubunit | None]] = {
    "EUR": ("m", "m", CurrencySubunit(("cent", "cents"), ("Cent", "Cent"), ("centime", "centimes"))),
    "USD": ("m", "m", _CENT),
    "GBP": ("n", "f", CurrencySubunit(("penny", "pence"), ("Penny", "Pence"), ("penny", "pence"))),
    "CHF": ("m", "m", CurrencySubunit(("centime", "centimes"), ("Rappen", "Rappen"), ("centime", "centimes"))),
    "CAD": ("m", "m", _CENT),
    "AUD": ("m", "m", _CENT),
    "JPY": ("m", "m", None),
    "SEK": ("f", "f", None),
    "NOK": ("f", "f", None),
    "DKK": ("f", "f", None),
    "CZK": ("f", "f", None),
    "INR": ("f", "f", None),
    "MXN": ("m", "m", None),
    "RUB": ("m", "m", None),
    "HUF": ("m", "m", None),
    "EGP": ("n", "f", None),
}
"""For each ISO 4217 code the German gender, the French gender, and the subunit used in amounts."""


@functools.cache
def currency_name(code: str, language: str, count: int) -> str:
    """Return a currency's name in the nominative singular (`count` 1) or plural (2), as it stands after a number.

    German adjectives are lower-case inside a sentence; "Schweizer" and "US-Dollar" keep their capitals.
    """
    name = get_currency_name(code, count=count, locale=language)
    first = name.split()[0]
    if language == "de" and first.endswith(("er", "es", "e")) and " " in name and first != "Schweizer":
        return name[0].lower() + name[1:]
    return name


class CountableNoun(NamedTuple):
    """A countable noun: singular and plural; in German and French the gender comes first."""

    en: tuple[str, str]
    de: tuple[str, str, str]
    fr: tuple[str, str, str]

    def dative_plural(self) -> str:
        """Return the German dative plural: -n is added unless the plural ends in -n or -s."""
        plural = self.de[2]
        return plural if plural.endswith(("n", "s")) else plural + "n"


# In French each of these begins with a consonant, so that "vieux" and its like need no second masculine form.
THINGS = (
    CountableNoun(("house", "houses"), ("n", "Haus", "Häuser"), ("f", "maison", "maisons")),
    CountableNoun(("car", "cars"), ("n", "Auto", "Autos"), ("f", "voiture", "voitures")),
    CountableNoun(("dog", "dogs"), ("m", "Hund", "Hunde"), ("m", "chien", "chiens")),
    CountableNoun(("cat", "cats"), ("f", "Katze", "Katzen"), ("m", "chat", "chats")),
    CountableNoun(("horse", "horses"), ("n", "Pferd", "Pferde"), ("m", "cheval", "chevaux")),
    CountableNoun(("table", "tables"), ("m", "Tisch", "Tische"), ("f", "table", "tables")),
    CountableNoun(("chair", "chairs"), ("m", "Stuhl", "Stühle"), ("f", "chaise", "chaises")),
    CountableNoun(("book", "books"), ("n", "Buch", "Bücher"), ("m", "livre", "livres")),
    CountableNoun(("flower", "flowers"), ("f", "Blume", "Blumen"), ("f", "fleur", "fleurs")),
    CountableNoun(("bottle", "bottles"), ("f", "Flasche", "Flaschen"), ("f", "bouteille", "bouteilles")),
    CountableNoun(("bag", "bags"), ("f", "Tasche", "Taschen"), ("m", "sac", "sacs")),
    CountableNoun(("shirt", "shirts"), ("n", "Hemd", "Hemden"), ("f", "chemise", "chemises")),
    CountableNoun(("hat", "hats"), ("m", "Hut", "Hüte"), ("m", "chapeau", "chapeaux")),
    CountableNoun(("boat", "boats"), ("n", "Boot", "Boote"), ("m", "bateau", "bateaux")),
    CountableNoun(("door", "doors"), ("f", "Tür", "Türen"), ("f", "porte", "portes")),
    CountableNoun(("lamp", "lamps"), ("f", "Lampe", "Lampen"), ("f", "lampe", "lampes")),
    CountableNoun(("key", "keys"), ("m", "Schlüssel", "Schlüssel"), ("f", "clé", "clés")),
    CountableNoun(("knife", "knives"), ("n", "Messer", "Messer"), ("m", "couteau", "couteaux")),
    CountableNoun(("cup", "cups"), ("f", "Tasse", "Tassen"), ("f", "tasse", "tasses")),
    CountableNoun(("garden", "gardens"), ("m", "Garten", "Gärten"), ("m", "jardin", "jardins")),
)


class Adjective(NamedTuple):
    """An adjective: English, the German stem, and French masculine and feminine, singular then plural."""

    en: str
    de: str
    fr: tuple[str, str, str, str]

    def french(self, gender: str, plural: bool) -> str:
        """Return the French form that agrees with a noun."""
        return self.fr[(gender == "f") + 2 * plural]


def _regular_adjective(en: str, de: str, masculine: str, feminine: str) -> Adjective:
    plural = masculine if masculine.endswith("s") else masculine + "s"
    return Adjective(en, de, (masculine, feminine, plural, feminine + "s"))


SIZES = (
    _regular_adjective("small", "klein", "petit", "petite"),
    _regular_adjective("large", "groß", "grand", "grande"),
    _regular_adjective("pretty", "hübsch", "joli", "jolie"),
    Adjective("old", "alt", ("vieux", "vieille", "vieux", "vieilles")),
    Adjective("new", "neu", ("nouveau", "nouvelle", "nouveaux", "nouvelles")),
    Adjective("beautiful", "schön", ("beau", "belle", "beaux", "belles")),
)
"""Adjectives that precede a French noun."""

COLORS = (
    _regular_adjective("red", "rot", "rouge", "rouge"),
    _regular_adjective("green", "grün", "vert", "verte"),
    _regular_adjective("blue", "blau", "bleu", "bleue"),
    _regular_adjective("black", "schwarz", "noir", "noire"),
    _regular_adjective("white", "weiß", "blanc", "blanche"),
    _regular_adjective("yellow", "gelb", "jaune", "jaune"),
    _regular_adjective("brown", "braun", "brun", "brune"),
    _regular_adjective("grey", "grau", "gris", "grise"),
)
"""Adjectives that follow a French noun, and follow the others in English and German."""
