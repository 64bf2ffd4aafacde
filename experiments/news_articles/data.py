"""Made-up news: titles, articles that agree with them, and a reader who finds every contradiction.

An article has a title and four sentences, each from one of several templates. Sentences repeat facts of the title, add
facts of their own, and repeat those or compute from them: "Arden beat Corva 3 - 1", and so "the margin was 2". One
title in `HELD_OUT` is in no training article.
"""

import dataclasses
import functools
import math
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

HELD_OUT = 8
TITLE_END = ":"

_TOWNS = (
    "Arden",
    "Belmar",
    "Corva",
    "Dunmore",
    "Elvas",
    "Fenwick",
    "Galdor",
    "Harrow",
    "Istra",
    "Juniper",
    "Keswick",
    "Lorne",
    "Marwell",
    "Norby",
    "Ostend",
    "Pellam",
    "Quenby",
    "Rothes",
    "Selkirk",
    "Tarbert",
)
_FIRMS = (
    "Alcor",
    "Brightmill",
    "Cordex",
    "Dynaf",
    "Eastline",
    "Fintra",
    "Gilder",
    "Hartwell",
    "Inlet",
    "Jadeworks",
    "Kestrel",
    "Lumen",
)
_FIRST_NAMES = (
    "Ada",
    "Ben",
    "Clara",
    "Dan",
    "Edith",
    "Frank",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Karla",
    "Liam",
    "Mara",
    "Nils",
    "Olga",
    "Paul",
)
_LAST_NAMES = (
    "Abel",
    "Brandt",
    "Carver",
    "Dahl",
    "Ekman",
    "Foss",
    "Grant",
    "Holm",
    "Ivers",
    "Jansen",
    "Kerr",
    "Lund",
    "Moss",
    "Nash",
    "Orr",
    "Price",
    "Quist",
    "Rand",
    "Stone",
    "Thorne",
    "Unger",
    "Vance",
    "Weller",
    "York",
)
_BUILDINGS = ("bridge", "library", "school", "theater", "station", "pool", "market", "museum")
_SIDES = ("for", "against")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("January", "March", "May", "July", "September", "November")
_HOURS = tuple(f"{hour} o'clock" for hour in ("six", "seven", "eight", "nine", "ten", "eleven"))
# The numbers that occur, small ones and staffs, are one word each.
_NUMBERS = tuple(map(str, (*range(31), *range(40, 1000, 10))))

Facts = Mapping[str, str]


class Choices:
    """Uniform choices, and how improbable they were.

    Args:
        random: The random generator.

    Attributes:
        nats: The sum of -log p over all choices so far.
    """

    def __init__(self, random: np.random.Generator):
        self.random, self.nats = random, 0.0

    def of(self, options: Sequence[str]) -> str:
        """Choose one of the options."""
        self.nats += math.log(len(options))
        return options[int(self.random.integers(len(options)))]

    def number(self, low: int, high: int, step: int = 1) -> str:
        """Choose a number from `low` to `high`, inclusive, in steps."""
        return self.of([str(number) for number in range(low, high + 1, step)])


@dataclasses.dataclass(frozen=True)
class NewsKind:
    """A kind of news.

    Attributes:
        titles: The templates of a title.
        sentences: For each sentence of an article, its templates.
        values: The words that may stand for a fact; the other facts are numbers.
        choose_title: Chooses the facts of a title.
        choose_details: Chooses the other facts, given those of the title.
        agrees: Whether the facts of an article agree with each other.
    """

    titles: tuple[str, ...]
    sentences: tuple[tuple[str, ...], ...]
    values: Mapping[str, Sequence[str]]
    choose_title: Callable[[Choices], dict[str, str]]
    choose_details: Callable[[Choices, Facts], dict[str, str]]
    agrees: Callable[[Facts], bool]


def _choose_match(choices: Choices) -> dict[str, str]:
    winner = choices.of(_TOWNS)
    loser = choices.of([town for town in _TOWNS if town != winner])
    won = choices.number(1, 6)
    return {"winner": winner, "loser": loser, "won": won, "lost": choices.number(0, int(won) - 1)}


def _choose_match_details(choices: Choices, facts: Facts) -> dict[str, str]:
    margin = int(facts["won"]) - int(facts["lost"])
    return {
        **_choose_person(choices),
        "day": choices.of(_DAYS),
        "margin": str(margin),
        "scored": choices.number(1, int(facts["won"])),
    }


def _match_agrees(facts: Facts) -> bool:
    won, lost = int(facts["won"]), int(facts["lost"])
    return won > lost and int(facts["margin"]) == won - lost and int(facts["scored"]) <= won


def _choose_vote(choices: Choices) -> dict[str, str]:
    return {
        "town": choices.of(_TOWNS),
        "side": choices.of(_SIDES),
        "building": choices.of(_BUILDINGS),
    }


def _choose_vote_details(choices: Choices, facts: Facts) -> dict[str, str]:
    more = choices.number(11, 20)
    less = choices.number(1, 10)
    votes = (more, less) if facts["side"] == "for" else (less, more)
    return {
        **_choose_person(choices),
        "day": choices.of(_DAYS),
        "yes": votes[0],
        "no": votes[1],
        "seats": str(int(more) + int(less)),
    }


def _is_vote_consistent(facts: Facts) -> bool:
    yes, no = int(facts["yes"]), int(facts["no"])
    return yes + no == int(facts["seats"]) and yes != no and (yes > no) == (facts["side"] == "for")


def _choose_storm(choices: Choices) -> dict[str, str]:
    return {"town": choices.of(_TOWNS), "closed": choices.number(2, 12)}


def _choose_storm_details(choices: Choices, facts: Facts) -> dict[str, str]:
    opened = choices.number(1, 9)
    return {
        **_choose_person(choices),
        "day": choices.of(_DAYS),
        "open": opened,
        "all": str(int(facts["closed"]) + int(opened)),
        "hour": choices.of(_HOURS),
    }


def _storm_agrees(facts: Facts) -> bool:
    return int(facts["closed"]) + int(facts["open"]) == int(facts["all"])


def _choose_hiring(choices: Choices) -> dict[str, str]:
    return {"firm": choices.of(_FIRMS), "hired": choices.number(10, 90, 10), "town": choices.of(_TOWNS)}


def _choose_hiring_details(choices: Choices, facts: Facts) -> dict[str, str]:
    staff = choices.number(100, 900, 100)
    return {
        **_choose_person(choices),
        "month": choices.of(_MONTHS),
        "staff": staff,
        "later": str(int(staff) + int(facts["hired"])),
    }


def _hiring_agrees(facts: Facts) -> bool:
    return int(facts["staff"]) + int(facts["hired"]) == int(facts["later"])


def _choose_person(choices: Choices) -> dict[str, str]:
    return {"first": choices.of(_FIRST_NAMES), "last": choices.of(_LAST_NAMES)}


_PERSON = {"first": _FIRST_NAMES, "last": _LAST_NAMES}

KINDS = {
    "match": NewsKind(
        titles=("{winner} beat {loser} {won} - {lost}", "{loser} lose {lost} - {won} to {winner}"),
        sentences=(
            (
                "on {day} {winner} beat {loser} {won} - {lost} .",
                "{winner} won {won} - {lost} against {loser} on {day} .",
            ),
            (
                "{first} {last} scored {scored} of the goals for {winner} .",
                "for {winner} {first} {last} scored {scored} .",
            ),
            ("the margin was {margin} .", "{loser} were {margin} behind at the end ."),
            ("{last} thanked the fans .", "{last} left with an injury ."),
        ),
        values={"winner": _TOWNS, "loser": _TOWNS, "day": _DAYS, **_PERSON},
        choose_title=_choose_match,
        choose_details=_choose_match_details,
        agrees=_match_agrees,
    ),
    "vote": NewsKind(
        titles=("{town} votes {side} a new {building}",),
        sentences=(
            (
                "on {day} the council of {town} voted {side} a new {building} .",
                "the council of {town} voted {side} a new {building} on {day} .",
            ),
            ("{yes} members were for it and {no} against it .",),
            ("all {seats} members voted .", "the council has {seats} members ."),
            (
                "{first} {last} , the mayor of {town} , had asked for the {building} .",
                "mayor {first} {last} was surprised .",
            ),
        ),
        values={"town": _TOWNS, "side": _SIDES, "building": _BUILDINGS, "day": _DAYS, **_PERSON},
        choose_title=_choose_vote,
        choose_details=_choose_vote_details,
        agrees=_is_vote_consistent,
    ),
    "storm": NewsKind(
        titles=("storm closes {closed} schools in {town}", "{closed} schools in {town} closed after storm"),
        sentences=(
            (
                "a storm closed {closed} schools in {town} on {day} .",
                "on {day} a storm reached {town} and closed {closed} schools .",
            ),
            ("of {all} schools {open} stayed open .", "the other {open} of the {all} schools stayed open ."),
            ("{first} {last} , who teaches in {town} , saw the water rise at {hour} .",),
            ("{last} spent the night in a gym .", "{last} called for help ."),
        ),
        values={"town": _TOWNS, "day": _DAYS, "hour": _HOURS, **_PERSON},
        choose_title=_choose_storm,
        choose_details=_choose_storm_details,
        agrees=_storm_agrees,
    ),
    "hiring": NewsKind(
        titles=("{firm} hires {hired} workers in {town}", "{hired} new jobs in {town} at {firm}"),
        sentences=(
            (
                "{firm} will hire {hired} workers in {town} from {month} on .",
                "from {month} on {firm} will hire {hired} workers in {town} .",
            ),
            ("its staff of {staff} will grow to {later} .", "it has {staff} workers today and will have {later} ."),
            ("{first} {last} , who leads {firm} , spoke of a good year .",),
            ("{last} wants to build in {town} .", "{last} would not speak of wages ."),
        ),
        values={"firm": _FIRMS, "town": _TOWNS, "month": _MONTHS, **_PERSON},
        choose_title=_choose_hiring,
        choose_details=_choose_hiring_details,
        agrees=_hiring_agrees,
    ),
}


class NewsArticle(NamedTuple):
    """An article.

    Attributes:
        kind: Its kind of news.
        title: The title.
        text: The sentences, in words with spaces between them.
        title_facts: The facts that the title states.
        nats: -log p(text | title) of the distribution that articles are drawn from.
    """

    kind: str
    title: str
    text: str
    title_facts: dict[str, str]
    nats: float


def sample_article(random: np.random.Generator, *, held_out: bool) -> NewsArticle:
    """Sample an article whose title is held out from training, or not.

    Args:
        random: The random generator.
        held_out: Whether its title is in no training article.
    """
    while True:
        choices = Choices(random)
        name = choices.of(tuple(KINDS))
        kind = KINDS[name]
        facts = kind.choose_title(choices)
        title = choices.of(kind.titles).format_map(facts)
        if is_held_out(title) == held_out:
            break
    choices = Choices(random)
    details = kind.choose_details(choices, facts)
    sentences = [choices.of(templates).format_map({**facts, **details}) for templates in kind.sentences]
    return NewsArticle(name, title, " ".join(sentences), facts, choices.nats)


def is_held_out(title: str) -> bool:
    """Return whether a title is held out: one in `HELD_OUT`, the same in all runs."""
    return zlib.crc32(title.encode()) % HELD_OUT == 0


class ReadArticle(NamedTuple):
    """What a reader who knows all templates finds in an article.

    Attributes:
        title_facts: The fraction of the title's facts that the article states, and states right wherever it does.
        agrees: Whether every sentence is of its kind, and no fact contradicts the title or another fact.
    """

    title_facts: float
    agrees: bool


def read_article(kind: str, title_facts: Facts, text: str) -> ReadArticle:
    """Compare the facts of an article with those of its title, and with each other.

    Args:
        kind: The kind of news that the title announces.
        title_facts: The facts of the title.
        text: The article.
    """
    article_kind = KINDS[kind]
    sentences = [f"{part} ." for part in text.removesuffix(" .").split(" . ")]
    stated: dict[str, set[str]] = {}
    grammatical = len(sentences) == len(article_kind.sentences)
    for sentence, templates in zip(sentences, article_kind.sentences, strict=False):
        matches = [match for template in templates if (match := _pattern(kind, template).fullmatch(sentence))]
        grammatical &= bool(matches)
        for name, value in matches[0].groupdict().items() if matches else ():
            stated.setdefault(name, set()).add(value)
    right = [stated.get(name) == {value} for name, value in title_facts.items()]
    facts = {name: next(iter(values)) for name, values in stated.items()}
    consistent = grammatical and all(right) and all(len(values) == 1 for values in stated.values())
    return ReadArticle(sum(right) / len(right), consistent and article_kind.agrees(facts))


@functools.cache
def _pattern(kind: str, template: str) -> re.Pattern[str]:
    """Return the regular expression of a template, with a group for every fact."""
    parts = re.split(r"\{(\w+)\}", template)
    values = KINDS[kind].values
    options = {name: "|".join(map(re.escape, values.get(name, _NUMBERS))) for name in parts[1::2]}
    return re.compile(
        "".join(f"(?P<{part}>{options[part]})" if place % 2 else re.escape(part) for place, part in enumerate(parts))
    )


def all_words() -> tuple[str, ...]:
    """Return every word of titles and articles, and what separates them."""
    templates = [template for kind in KINDS.values() for part in (kind.titles, *kind.sentences) for template in part]
    plain = {word for template in templates for word in re.sub(r"\{\w+\}", " ", template).split()}
    values = {
        word for kind in KINDS.values() for options in kind.values.values() for text in options for word in text.split()
    }
    return (*sorted(plain | values | set(_NUMBERS)), TITLE_END)


def parse_title(title: str) -> tuple[str, dict[str, str]] | None:
    """Return the kind of news that a title announces and its facts; None if it follows no template."""
    for name, kind in KINDS.items():
        for template in kind.titles:
            if match := _pattern(name, template).fullmatch(title):
                return name, match.groupdict()
    return None
