"""Made-up news: held-out titles, the probability of an article, and contradictions written by hand."""

import math

import numpy as np
import pytest

from experiments.news_articles.data import KINDS, all_words, is_held_out, parse_title, read_article, sample_article

MATCH = {"winner": "Arden", "loser": "Corva", "won": "3", "lost": "1"}
VOTE = {"town": "Norby", "side": "against", "building": "pool"}
STORM = {"town": "Istra", "closed": "4"}
HIRING = {"firm": "Lumen", "hired": "40", "town": "Elvas"}
RIGHT = {
    "match": (
        MATCH,
        "on Sunday Arden beat Corva 3 - 1 . "
        "Ada Kerr scored 2 of the goals for Arden . "
        "the margin was 2 . "
        "Kerr thanked the fans .",
    ),
    "vote": (
        VOTE,
        "the council of Norby voted against a new pool on Friday . "
        "7 members were for it and 12 against it . "
        "all 19 members voted . "
        "mayor Ben Foss was surprised .",
    ),
    "storm": (
        STORM,
        "a storm closed 4 schools in Istra on Monday . "
        "of 9 schools 5 stayed open . "
        "Clara Holm , who teaches in Istra , saw the water rise at six o'clock . "
        "Holm called for help .",
    ),
    "hiring": (
        HIRING,
        "from May on Lumen will hire 40 workers in Elvas . "
        "its staff of 300 will grow to 340 . "
        "Dan Orr , who leads Lumen , spoke of a good year . "
        "Orr wants to build in Elvas .",
    ),
}


def test_articles_agree_with_their_titles_which_are_held_out_or_not() -> None:
    random = np.random.default_rng(1)
    for held_out in (False, True):
        articles = [sample_article(random, held_out=held_out) for _ in range(200)]
        assert all(is_held_out(article.title) == held_out for article in articles)
        assert {article.kind for article in articles} == set(KINDS)
        for article in articles:
            assert read_article(article.kind, article.title_facts, article.text) == (1.0, True)
            assert parse_title(article.title) == (article.kind, article.title_facts)
            assert set(f"{article.title} {article.text}".split()) <= set(all_words())


def test_the_probability_of_an_article_is_that_of_its_choices() -> None:
    # A vote: first and last name, the day, ten numbers twice, and the choice of three of four templates.
    vote = 16 * 24 * 7 * 10 * 10 * 2 * 2 * 2
    # A match: names and day, who scored how many of 3 goals, and the choice of four templates.
    match = 16 * 24 * 7 * 3 * 2**4
    random = np.random.default_rng(2)
    articles = [sample_article(random, held_out=False) for _ in range(300)]
    assert {round(article.nats, 9) for article in articles if article.kind == "vote"} == {round(math.log(vote), 9)}
    assert {
        round(article.nats, 9) for article in articles if article.kind == "match" and article.title_facts["won"] == "3"
    } == {round(math.log(match), 9)}


@pytest.mark.parametrize("kind", RIGHT)
def test_a_reader_accepts_an_article_without_contradictions(kind: str) -> None:
    assert read_article(kind, *RIGHT[kind]) == (1.0, True)


@pytest.mark.parametrize(
    ("kind", "old", "new", "title_facts"),
    [
        ("match", "Corva 3 - 1", "Corva 3 - 2", 0.75),
        ("match", "goals for Arden", "goals for Norby", 0.75),
        ("match", "the margin was 2", "the margin was 1", 1.0),
        ("match", "scored 2", "scored 4", 1.0),
        ("match", "Kerr thanked", "Foss thanked", 1.0),
        ("match", " . Kerr thanked the fans", "", 1.0),
        ("vote", "against a new", "for a new", 2 / 3),
        ("vote", "7 members were for it and 12", "12 members were for it and 7", 1.0),
        ("vote", "all 19", "all 20", 1.0),
        ("storm", "closed 4", "closed 5", 0.5),
        ("storm", "of 9 schools 5", "of 9 schools 6", 1.0),
        ("storm", "teaches in Istra", "teaches in Elvas", 0.5),
        ("storm", "called for help", "called for", 1.0),
        ("hiring", "grow to 340", "grow to 330", 1.0),
        ("hiring", "leads Lumen", "leads Alcor", 2 / 3),
    ],
)
def test_a_reader_finds_a_contradiction(kind: str, old: str, new: str, title_facts: float) -> None:
    facts, text = RIGHT[kind]
    assert old in text
    found = read_article(kind, facts, text.replace(old, new))
    assert not found.agrees
    assert found.title_facts == pytest.approx(title_facts)


def test_another_kind_of_news_and_an_empty_article_state_no_facts() -> None:
    assert read_article("match", MATCH, RIGHT["vote"][1]) == (0.0, False)
    assert read_article("match", MATCH, "") == (0.0, False)
    assert parse_title("Arden beat nobody") is None
