"""What a map's axes are called: tokens, titles and known links of sentence pairs."""

import pytest

from transformer.attention.sites import Axis, AxisKind, Site
from transformer.config import UserError
from transformer.data.datasets.aligned_templates import WordAlignment
from transformer.data.datasets.translation import SentencePair
from transformer.data.tokenizers.fast_tokenizer import FastTokenizer
from transformer.data.tokenizers.train_tokenizer import train_bpe
from transformer.tasks.axis_labels import AxisLabels, GoldAlignment
from transformer.tasks.translation_data import choose_varied_pairs, encode_pairs, pair_axis_labels, word_of_each_piece

PAIRS = [
    SentencePair("half past nine", "halb zehn", "de", "time", WordAlignment(((0, 0),), ((0, 0), (1, 1), (2, 1)))),
    SentencePair("nine", "neuf", "fr", "number", WordAlignment(((0, 0),), ((0, 0),))),
]
SOURCE, TARGET = Axis("source"), Axis("target")
SITES = (
    Site("encoder/self", SOURCE, SOURCE, ("0",), ("0",)),
    Site("decoder/cross", TARGET, SOURCE, ("0",), ("0",)),
    Site("upper/cross", TARGET, SOURCE, ("0",), ("0", "1")),
)
TEXTS = [text for pair in PAIRS for text in (pair.source, pair.target)]


@pytest.fixture(scope="module")
def tokenizer() -> FastTokenizer:
    """Just large enough to have each frequent word in one piece: `zehn`, which is rare, is in several."""
    often = 20 * [text for text in TEXTS if "zehn" not in text] + 10 * ["halb"] + ["halb zehn"]
    sizes = (train_bpe(often, size, ["de", "fr"]) for size in range(20, 100))
    return next(found for found in sizes if len(found.encode(["half past nine neuf halb"])[0]) == 5)


def test_tokens_are_named_as_the_model_reads_them(tokenizer: FastTokenizer) -> None:
    labels = pair_axis_labels(tokenizer, PAIRS, SITES)
    encoded = encode_pairs(tokenizer, PAIRS)
    assert labels.tokens["source"][0] == ("<2de>", "▁half", "▁past", "▁nine", "<end>")
    assert labels.tokens["source"][1][0] == "<2fr>"
    target = labels.tokens["target"][0]
    assert "".join(target) == "▁halb▁zehn<end>"
    assert labels.tokens["target_input"][0] == ("<begin>", *target[:-1])
    for axis, numbers in (("source", encoded.sources), ("target", encoded.targets), ("target_input", encoded.targets)):
        assert [len(tokens) for tokens in labels.tokens[axis]] == [len(ids) for ids in numbers]
    assert labels.titles == ("time → de", "number → fr")


def test_links_of_words_become_links_of_their_pieces(tokenizer: FastTokenizer) -> None:
    labels = pair_axis_labels(tokenizer, PAIRS, SITES)
    assert labels.gold_alignments is not None
    source, target = labels.tokens["source"][0], labels.tokens["target"][0]
    pieces_of_zehn = range(target.index("<end>"))[1:]
    assert len(pieces_of_zehn) > 1
    sure = {(target.index("▁halb"), source.index("▁half"), True)}
    possible = {(query, source.index(word), False) for query in pieces_of_zehn for word in ("▁past", "▁nine")}
    assert {tuple(link) for link in labels.gold_alignments["decoder/cross"][0]} == sure | possible
    assert [tuple(link) for link in labels.gold_alignments["decoder/cross"][1]] == [(0, 1, True)]
    # Of every site between target and source, whatever its name, and of no other.
    assert labels.gold_alignments.keys() == {"decoder/cross", "upper/cross"}
    assert labels.gold_alignments["upper/cross"] == labels.gold_alignments["decoder/cross"]
    assert pair_axis_labels(tokenizer, PAIRS, SITES[:1]).gold_alignments is None


def test_without_known_links_there_are_none(tokenizer: FastTokenizer) -> None:
    pairs = [pair._replace(word_alignment=None, kind=None) for pair in PAIRS]
    labels = pair_axis_labels(tokenizer, pairs, SITES)
    assert labels.gold_alignments is None
    assert labels.titles == ("sentence → de", "sentence → fr")


def test_tags_and_ends_belong_to_no_word() -> None:
    assert word_of_each_piece(["<2de>", "▁a", "b", "▁c", "<end>"]) == [-1, 0, 0, 1, -1]


def test_a_probe_batch_takes_turns_among_languages_and_kinds() -> None:
    pairs = [
        SentencePair("", "", language, kind)
        for language, kind in 3 * [("de", "time")] + [("fr", "time"), ("de", "date")]
    ]
    assert choose_varied_pairs(pairs, 4) == [0, 3, 4, 1]
    assert choose_varied_pairs(pairs, 50) == [0, 3, 4, 1, 2]


def test_parts_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens\['source'\] has 2 examples but titles has 1"):
        AxisLabels(tokens={"source": (("a",), ("b",))}, titles=("one",))
    with pytest.raises(ValueError, match=r"gold_alignments\['site'\] has 0 examples but titles has 1"):
        AxisLabels(tokens={"source": (("a",),)}, titles=("one",), gold_alignments={"site": ()})


def of_axis(axis: Axis) -> AxisLabels:
    return AxisLabels(tokens={"target": (("a", "b"), ("c",))}, titles=("one", "two")).with_axis_names(
        [Site("read", TARGET, axis, ("0",), ("0",))]
    )


@pytest.mark.parametrize(
    ("axis", "names"),
    [
        (Axis("memory", AxisKind.SLOTS, num_positions=3), ("slot 0", "slot 1", "slot 2")),
        (Axis("router", AxisKind.EXPERTS, num_positions=2), ("expert 0", "expert 1")),
        (Axis("time", AxisKind.STEPS, num_positions=2), ("step 0", "step 1")),
        (Axis("patches", AxisKind.GRID, shape=(1, 2), num_leading_positions=1), ("class", "0,0", "0,1")),
        (Axis("sound", AxisKind.FRAMES, num_positions=3, stride=0.25, offset=0.5), ("0.50 s", "0.75 s", "1.00 s")),
    ],
    ids=lambda value: value.kind.value if isinstance(value, Axis) else "",
)
def test_an_axis_of_known_size_names_itself_for_every_example(axis: Axis, names: tuple[str, ...]) -> None:
    assert of_axis(axis).tokens[axis.name] == (names, names)


def test_a_delayed_axis_has_the_names_of_the_tokens_before() -> None:
    axis = Axis("delayed", delayed_axis="target")
    assert of_axis(axis).tokens["delayed"] == (("<begin>", "a"), ("<begin>",))
    with pytest.raises(UserError, match="has the axis 'delayed', which nothing names"):
        of_axis(Axis("delayed", delayed_axis="source"))


def test_an_axis_that_nothing_names_is_refused_by_its_site() -> None:
    with pytest.raises(UserError, match=r"the site 'read' has the axis 'memory', which nothing names: .*\['target'\]"):
        of_axis(Axis("memory", AxisKind.SLOTS))


@pytest.mark.parametrize("kind", [AxisKind.TOKENS, AxisKind.GRID])
def test_a_size_where_there_can_be_none_is_refused(kind: AxisKind) -> None:
    with pytest.raises(ValueError, match=r"axis 'x' of kind .* has num_positions=3"):
        Axis("x", kind, num_positions=3, shape=(1, 3) if kind is AxisKind.GRID else None)


def test_links_of_no_site_or_outside_of_their_axes_are_refused() -> None:
    site = Site("cross", TARGET, SOURCE, ("0",), ("0",))
    tokens = {"target": (("a", "b"),), "source": (("c",),)}

    def labels(name: str, link: GoldAlignment) -> AxisLabels:
        return AxisLabels(tokens, ("one",), gold_alignments={name: ((link,),)})

    assert labels("cross", GoldAlignment(1, 0, True)).with_axis_names([site]).gold_alignments is not None
    with pytest.raises(UserError, match=r"gold alignments are of the site 'crass', which the model lacks: .*'cross'"):
        labels("crass", GoldAlignment(1, 0, True)).with_axis_names([site])
    for link in (GoldAlignment(2, 0, True), GoldAlignment(0, 1, True), GoldAlignment(-1, 0, True)):
        with pytest.raises(UserError, match=r"example 0 at the site 'cross' lies outside of its 2 positions of 'targ"):
            labels("cross", link).with_axis_names([site])
