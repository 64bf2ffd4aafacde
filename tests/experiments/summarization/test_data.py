"""Articles: their facts, summaries, names and links, and words beyond a vocabulary by number."""

import numpy as np
import pytest

from experiments.summarization.data import (
    FILLERS,
    KINDS,
    ArticleGenerator,
    ExtendedVocabulary,
    Fact,
    gold_alignments,
    is_held_out,
    parse_facts,
    write_summary,
)


def words(lines: tuple[str, ...]) -> set[str]:
    return {word for line in lines for word in line.split() if not word.startswith("{")}


def test_a_summary_tells_in_other_words_what_the_article_tells() -> None:
    told = words(tuple(kind.summary for kind in KINDS.values()))
    sentences = words((*FILLERS, *(line for kind in KINDS.values() for line in kind.article)))
    assert not told & sentences
    # What comes first says which fact it is.
    assert len({kind.summary.split()[0] for kind in KINDS.values()}) == len(KINDS)
    for line in (*FILLERS, *(line for kind in KINDS.values() for line in (*kind.article, kind.summary))):
        assert line.split().count("{who}") == line.split().count("{place}") == 1


@pytest.mark.parametrize("unseen", [True, False])
def test_articles_have_their_facts_their_names_and_links(unseen: bool) -> None:
    kind, random = ArticleGenerator(num_fillers=2, num_known_names=30), np.random.default_rng(1)
    fresh, orders = 0, set()
    vocabulary = set(kind.vocabulary)
    for _ in range(60):
        article = kind.sample(random, 4, unseen=unseen)
        told = write_summary(article.facts)
        assert parse_facts(told) == list(article.facts)
        assert len({fact.kind for fact in article.facts}) == 4
        names = [word for word in article.words if word[0].isupper()]
        assert len(names) == len(set(names)) == kind.max_names(4)
        assert {is_held_out(name) for name in names if name not in vocabulary} <= {unseen}
        fresh += sum(name not in vocabulary for name in names)
        assert set(told) | set(article.words) <= vocabulary | set(names)
        assert len(article.words) <= kind.max_article_length(4)
        assert len(told) <= kind.max_summary_length(4)
        pairs = gold_alignments(article)
        assert len(pairs) == 8
        for said, read in pairs:
            assert told[said] == article.words[read]
        # The sentence of a name is one that tells its fact.
        for fact, places in zip(article.facts, article.name_positions, strict=True):
            assert set(places) == {fact.person, fact.place}
            sentence = " ".join(article.words).split(" . ")[article.words[: places[fact.person]].count(".")]
            forms = [form.format(who=fact.person, place=fact.place) for form in KINDS[fact.kind].article]
            assert sentence.removesuffix(" .") in forms
        first = [places[fact.person] for fact, places in zip(article.facts, article.name_positions, strict=True)]
        orders.add(tuple(np.argsort(first)))
    assert fresh == pytest.approx(60 * 12 * 0.5, abs=60)
    assert len(orders) > 15


def test_what_tells_no_fact_is_told_apart() -> None:
    fact = Fact("race", "Timo", "Kesto")
    assert parse_facts([]) == []
    assert parse_facts(write_summary([fact])[:-1]) == [fact]
    assert parse_facts([*write_summary([fact]), "sport", ":", "."]) == [fact, None]


def test_words_beyond_the_vocabulary_have_numbers_of_their_text() -> None:
    text = ["Bado", "the", "Timo", "saw", "Bado"]
    lexicon = ExtendedVocabulary(("<pad>", "<unknown>", "the", "saw"), unknown_id=1, copies=True)
    read = lexicon.encode_articles([text, ["the"]], 6, 0)
    assert read["source"].tolist() == [[1, 2, 1, 3, 1, 0], [2, 0, 0, 0, 0, 0]]
    assert read["copied"].tolist() == [[4, 2, 5, 3, 4, 0], [2, 0, 0, 0, 0, 0]]
    assert lexicon.encode_words(["Timo", "saw", "Kesto"], text) == [5, 3, 1]
    assert lexicon.decode_words([5, 3, 4, 1, 7], text) == ["Timo", "saw", "Bado", "<unknown>", "<unknown>"]
    alike = ExtendedVocabulary(lexicon.words, unknown_id=1, copies=False)
    assert set(alike.encode_articles([text], 6, 0)) == {"source"}
    assert alike.encode_words(["Timo", "saw"], text) == [1, 3]
    # A model whose tables are padded has numbers beyond the vocabulary: no words that it could not say.
    assert alike.decode_words([3, 4], text) == ["saw", "<unknown>"]
