"""Rules by path: every parameter is decided once, by the first rule that matches, and nothing is decided in silence."""

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer.config import UserError
from transformer.training.entry_names import match_classes
from transformer.training.init_plan import ArrayInfo, MatchedSource, match_wildcards, parse_init_rule, plan_parameters

FLOAT = "float32"
SOURCES = {
    "embedding/table": ArrayInfo((20, 4), FLOAT),
    "layers/query/kernel": ArrayInfo((2, 4, 2, 2), FLOAT),
    "layers/query/bias": ArrayInfo((2, 2, 2), FLOAT),
    "norm/scale": ArrayInfo((4,), FLOAT),
    "head/kernel": ArrayInfo((4, 20), FLOAT),
    "state/norm/count": ArrayInfo((), "int32"),
}
TARGETS = {
    "embedding/table": ArrayInfo((20, 4), FLOAT, ("vocabulary", "embed")),
    "layers/query/kernel": ArrayInfo((2, 4, 2, 2), FLOAT, ("layers", "embed", "heads", "head_dim")),
    "layers/query/bias": ArrayInfo((2, 2, 2), FLOAT, ("layers", "heads", "head_dim")),
    "norm/scale": ArrayInfo((4,), FLOAT, ("embed",)),
    "head/kernel": ArrayInfo((4, 20), FLOAT, ("embed", "vocabulary")),
    "state/norm/count": ArrayInfo((), "int32"),
}


def planned(*rules: str, **changes: ArrayInfo | None):
    """The plan of the targets above with some changed, by their paths with __ for /; None takes one out."""
    named = {name.replace("__", "/"): leaf for name, leaf in changes.items()}
    targets = {path: leaf for path, leaf in (TARGETS | named).items() if leaf is not None}
    return plan_parameters(targets, SOURCES, [parse_init_rule(rule) for rule in rules])


def test_without_rules_every_parameter_takes_the_one_of_its_path() -> None:
    made = planned()
    assert made.matched_sources == {path: MatchedSource(path, leaf) for path, leaf in SOURCES.items()}
    assert (made.newly_initialized, made.unused_paths, made.resized_paths, made.cast_paths) == ({}, (), (), ())


def test_what_is_left_fresh_renamed_resized_cast_and_unused() -> None:
    made = planned(
        "classes/* = fresh",
        "decoder/*/kernel = layers/*/kernel",
        "resize head/*",
        classes__kernel=ArrayInfo((4, 3), FLOAT),
        decoder__query__kernel=ArrayInfo((2, 4, 2, 2), "bfloat16"),
        head__kernel=ArrayInfo((4, 24), FLOAT, ("embed", "vocabulary")),
        embedding__table=None,
    )
    assert made.newly_initialized == {"classes/kernel": "classes/* = fresh"}
    assert made.matched_sources["decoder/query/kernel"] == MatchedSource(
        "layers/query/kernel", SOURCES["layers/query/kernel"]
    )
    assert made.matched_sources["head/kernel"] == MatchedSource("head/kernel", SOURCES["head/kernel"], resized_axis=1)
    assert (made.resized_paths, made.cast_paths) == (("head/kernel",), ("decoder/query/kernel",))
    assert made.unused_paths == ("embedding/table",)


def test_one_source_can_be_taken_twice() -> None:
    made = planned("cross/* = layers/query/*", cross__bias=ArrayInfo((2, 2, 2), FLOAT))
    assert (
        made.matched_sources["cross/bias"].source_path
        == made.matched_sources["layers/query/bias"].source_path
        == "layers/query/bias"
    )


def test_the_first_rule_that_matches_decides() -> None:
    assert set(planned("layers/query/bias = layers/query/bias", "layers/* = fresh").newly_initialized) == {
        "layers/query/kernel"
    }


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("*", "a/b", ("a/b",)),
        ("a/*", "a/b/c", ("b/c",)),
        ("*/c", "a/b/c", ("a/b",)),
        ("*/*", "a/b/c", ("a", "b/c")),  # the first as short as it can be
        ("a/b", "a/b", ()),
        ("a.b", "a/b", None),  # no regular expression
        ("a/*", "b/a/c", None),
        ("a", "a/b", None),
    ],
)
def test_what_a_star_stands_for(pattern: str, path: str, found: tuple[str, ...] | None) -> None:
    assert match_wildcards(pattern, path) == found


PATTERNS = ("*", "a/*", "b/*", "*/c", "*/d", "a/c", "b/d", "a/*/e")
PATHS = [f"{first}/{second}{last}" for first in "ab" for second in "cd" for last in ("", "/e")]


def decided_by_hand(paths: list[str], rules: list[tuple[str, str]]) -> dict[str, tuple[int | None, str]]:
    """Of every path the number of the rule that decides it, and the source that this names."""
    found: dict[str, tuple[int | None, str]] = {}
    for path in paths:
        found[path] = None, path
        for number, (target, source) in reversed(list(enumerate(rules))):
            if fnmatch.fnmatchcase(path, target):
                before, _, behind = target.partition("*")
                star = path[len(before) : len(path) - len(behind)]
                found[path] = number, source.replace("*", star) if "*" in target else source
    return found


@pytest.mark.slow
@given(
    st.lists(st.sampled_from(PATHS), min_size=1, unique=True),
    st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from(["fresh", "x/*", "y"])), max_size=4),
)
def test_every_parameter_is_decided_exactly_once(paths: list[str], drawn: list[tuple[str, str]]) -> None:
    rules = [(target, source if "*" in target or "*" not in source else "x") for target, source in drawn]
    expected = decided_by_hand(paths, rules)
    targets = {path: ArrayInfo((2,), FLOAT) for path in paths}
    sources = {source: ArrayInfo((2,), FLOAT) for _, source in expected.values()} | {"spare": ArrayInfo((), FLOAT)}
    parsed = [parse_init_rule(f"{target} = {source}") for target, source in rules]
    if {number for number, _ in expected.values()} - {None} != set(range(len(rules))):
        with pytest.raises(UserError, match=r"decides nothing|matches no parameter"):
            plan_parameters(targets, sources, parsed)
        return
    made = plan_parameters(targets, sources, parsed)
    assert sorted([*made.matched_sources, *made.newly_initialized]) == sorted(paths)
    for path, (_, source) in expected.items():
        assert (path in made.newly_initialized) == (source == "fresh")
        assert path in made.newly_initialized or made.matched_sources[path].source_path == source
    taken = {source for _, source in expected.values() if source != "fresh"}
    assert set(made.unused_paths) == set(sources) - taken


@pytest.mark.parametrize(
    "text",
    ["", "head", "head ->  fresh", "= fresh", "head =", "a = b = c", "resize", "resize a = b", "shrink a", "a b = c"],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^config\.initialize_from\.rules: .* is no rule; .*'TARGET = fresh'"):
        parse_init_rule(text)


def test_a_star_on_the_right_needs_one_on_the_left() -> None:
    with pytest.raises(UserError, match=r"'a/\* = \*/\*' has 2 \* on the right and 1 on the left"):
        parse_init_rule("a/* = */*")
    assert parse_init_rule("a/*/b = c").source == "c"


NEW = ArrayInfo((4, 3), FLOAT)
REFUSED = {
    "absent": (
        {"classes__kernel": NEW, "classes__bias": NEW, "norm__bias": NEW},
        (),
        r"the run has no 'classes/kernel' for the parameter classes/kernel \(4, 3\) \(and none for 2 more: "
        r"classes/bias, norm/bias\); .*'classes/kernel = SOURCE', or leave it fresh with 'classes/\* = fresh'$",
    ),
    "absent beside what is there": (
        {"norm__bias": NEW},
        (),
        r"the run has no 'norm/bias' for the parameter norm/bias \(4, 3\); .*'norm/bias = fresh'$",
    ),
    "absent inside": (
        {"layers__query__lora__down": NEW, "layers__key__lora__down": NEW},
        (),
        r"the run has no 'layers/query/lora/down' .*, or leave it fresh with '\*/lora/\* = fresh'$",
    ),
    "named by a rule": (
        {},
        ("norm/* = norms/*",),
        r"the run has no 'norms/scale' \(by the rule 'norm/\* = norms/\*'\) for the parameter norm/scale \(4,\); "
        r"did you mean 'norm/scale'",
    ),
    "size": (
        {"embedding__table": ArrayInfo((24, 4), FLOAT, ("vocabulary", "embed"))},
        (),
        r"embedding/table \(24, 4\) of float32 is of another size than 'embedding/table' in the run, \(20, 4\) of "
        r"float32; .*'resize embedding/table', or leave it fresh with the rule 'embedding/table = fresh'$",
    ),
    "two sizes": (
        {"embedding__table": ArrayInfo((24, 8), FLOAT, ("vocabulary", "embed"))},
        ("resize *",),
        r"embedding/table \(24, 8\) .* differs along 2 axes from .*\(20, 4\).*'embedding/table = fresh'$",
    ),
    "layers": (
        {"layers__query__bias": ArrayInfo((4, 2, 2), FLOAT, ("layers", "heads", "head_dim"))},
        ("resize *",),
        r"layers/query/bias \(4, 2, 2\) .* another number of layers than .*\(2, 2, 2\).*layers are never resized",
    ),
    "axes": (
        {"norm__scale": ArrayInfo((4, 1), FLOAT)},
        ("resize *",),
        r"norm/scale \(4, 1\) .* another number of axes than 'norm/scale' in the run, \(4,\)",
    ),
    "float of integer": (
        {"state__norm__count": ArrayInfo((), FLOAT)},
        (),
        r"state/norm/count \(\) of float32 cannot take .*int32: only floating-point numbers are cast",
    ),
    "integer of float": (
        {"norm__scale": ArrayInfo((4,), "int32")},
        (),
        r"norm/scale \(4,\) of int32 cannot take .*float32",
    ),
    "key of float": ({"norm__scale": ArrayInfo((4,), "key<fry>")}, (), r"norm/scale \(4,\) of key<fry> cannot take"),
    "rule that matches nothing": (
        {},
        ("haed/* = fresh",),
        r"'haed/\* = fresh' matches no parameter of this run; known: ",
    ),
    "rule behind another": ({}, ("head/* = fresh", "head/kernel = fresh"), r"'head/kernel = fresh' decides nothing: "),
    "rule twice": ({}, ("head/* = fresh", "head/* = fresh"), r"'head/\* = fresh' decides nothing: the rules before"),
    "resize of nothing": ({}, ("resize heads/*",), r"'resize heads/\*' matches no parameter of this run; did you mean"),
    "resize of what is fresh": (
        {},
        ("head/* = fresh", "resize head/*"),
        r"'resize head/\*' resizes what 'head/\* = fresh' leaves fresh: drop one",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(name: str) -> None:
    changes, rules, says = REFUSED[name]
    with pytest.raises(UserError, match=r"^config\.initialize_from.*" + says) as refused:
        planned(*rules, **changes)
    assert "\n" not in str(refused.value)
    assert re.search(r"[.;:]\s*$", str(refused.value)) is None


CLASSES = {"classes/kernel": ArrayInfo((4, 3), FLOAT, ("embed", "classes"))}


@pytest.mark.parametrize(
    ("source", "target", "entries"),
    [
        ("a b c", "b c a", (1, 2, 0)),
        ("a b c", "a b d", (0, 1, -1)),
        ("A B C", "c a b", (2, 0, 1)),
        ("O B-PER I-PER", "O I-PER B-PER", (0, 2, 1)),
        ("A b C", "c a b", (2, 0, 1)),  # those of other case beside one of the same
        ("a A b", "b a A", (2, 0, 1)),
        ("a A b", "A B c", (1, 2, -1)),
        ("a b b", "b a c", (-1, 0, -1)),  # two of one name: which is which nobody knows
    ],
)
def test_entries_are_taken_by_name(source: str, target: str, entries: tuple[int, ...]) -> None:
    match = match_classes(source.split(), target.split())
    assert match is not None
    made = plan_parameters(CLASSES, CLASSES, [], {"classes": match})
    taken = made.matched_sources["classes/kernel"]
    assert (taken.named_axis, taken.entries) == (1, entries)
    assert taken.taken_shape(CLASSES["classes/kernel"]) == (4, sum(entry >= 0 for entry in entries))
    assert made.paths_matched_along("classes") == ("classes/kernel",)


def test_equal_or_unknown_names_change_nothing_and_without_a_common_one_nothing_is_taken() -> None:
    for source, target in (("a b c", "a b c"), ("", "a b c"), ("a b c", "")):
        assert match_classes(source.split(), target.split()) is None
    match = match_classes(("x", "y", "z"), ("a", "b", "c"))
    assert match is not None
    with pytest.raises(
        UserError,
        match=r"classes are a, b, c, and there x, y, z; leave it fresh with the rule 'classes/kernel = fresh'",
    ):
        plan_parameters(CLASSES, CLASSES, [], {"classes": match})
    fresh = plan_parameters(CLASSES, CLASSES, [parse_init_rule("classes/* = fresh")], {"classes": match})
    assert fresh.matched_sources == {}


def test_classes_of_another_number_are_matched_where_a_rule_allows_it() -> None:
    match = match_classes(("no", "yes"), ("yes", "maybe", "no"))
    assert match is not None
    source = {"classes/kernel": ArrayInfo((4, 2), FLOAT)}
    with pytest.raises(UserError, match="'resize classes/kernel'"):
        plan_parameters(CLASSES, source, [], {"classes": match})
    made = plan_parameters(CLASSES, source, [parse_init_rule("resize classes/*")], {"classes": match})
    assert made.matched_sources["classes/kernel"].entries == (1, -1, 0)
