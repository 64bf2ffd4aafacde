"""Synthetic fine-tuning problems, one for each layout of texts, whose grammar determines the exact answers."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from transformer.config import Config, PositiveInt, UserError, from_config, suggest_nearest
from transformer.data.datasets.dataset_name_options import parse_int_options
from transformer.data.datasets.example_splits import hash_split, take_examples
from transformer.data.datasets.synthetic_symbols import SPLITS
from transformer.data.fine_tuning_sequence_layouts import SequenceLayout
from transformer.data.labeled_text_batches import LabeledExample

NOUNS = ("dog", "cat", "bird", "girl", "king", "cook")
VERBS = ("sleep", "laugh", "wait", "run", "sing")
PLACES = ("near", "behind", "with")
PEOPLE = ("ann", "bob", "carl", "dora", "eve", "fred")
ANSWERS = 3
THINGS = tuple(
    f"{color} {thing}" for color in ("red", "blue", "green") for thing in ("ball", "cup", "hat", "box", "pen")
)
MOST_THINGS = 4

Fact = tuple[str, str]  # the first is taller than the second


def sample_acceptability(random: np.random.Generator) -> list[LabeledExample]:
    """Sample two sentences that differ only in the number of their verb, one of which agrees with the subject.

    A noun in between has a random number of its own, so that the word next to the verb says nothing.
    """
    subject, distractor = random.choice(NOUNS, 2, replace=False)
    plural, distractor_plural = random.integers(0, 2, 2)
    between = (
        f" {random.choice(PLACES)} the {distractor}{'s' * int(distractor_plural)}" if random.random() < 0.75 else ""
    )
    verb = str(random.choice(VERBS))
    front = f"the {subject}{'s' * int(plural)}{between}"
    return [
        LabeledExample((f"{front} {form}",), int(agrees == plural)) for agrees, form in enumerate((f"{verb}s", verb))
    ]


def sample_entailment(random: np.random.Generator) -> list[LabeledExample]:
    """Sample a premise about who is taller, and a hypothesis that it implies, leaves open or contradicts.

    "Taller" is a strict order: a hypothesis is entailed if a chain of facts leads from its first person to its second,
    contradicted if one leads back, and neutral otherwise. Half of the premises have one fact, half two.
    """
    people = [str(name) for name in random.choice(PEOPLE, 4, replace=False)]
    facts = [(people[0], people[1]), (people[1], people[2])][: random.integers(1, 3)]
    closure = transitive_closure(facts)
    pairs = list(itertools.permutations(people, 2))
    label = int(random.integers(0, 3))
    matching_pairs = [pair for pair in pairs if entailment_label(pair, closure) == label]
    first, second = matching_pairs[random.integers(len(matching_pairs))]
    return [LabeledExample((_write_facts(facts, random), f"{first} is taller than {second}"), label)]


def sample_similarity(random: np.random.Generator) -> list[LabeledExample]:
    """Sample two lists of different things, in random order; the score is the number of things in both."""
    shared = int(random.integers(0, MOST_THINGS + 1))
    sampled_things = [str(thing) for thing in random.choice(THINGS, 2 * MOST_THINGS - shared, replace=False)]
    lists = sampled_things[:MOST_THINGS], [*sampled_things[:shared], *sampled_things[MOST_THINGS:]]
    first, second = (" and ".join(random.permutation(things)) for things in lists)
    return [LabeledExample((first, second), float(shared))]


def sample_choice(random: np.random.Generator) -> list[LabeledExample]:
    """Sample facts about three people and a question: who is tallest or smallest?"""
    order = [str(name) for name in random.choice(PEOPLE, ANSWERS, replace=False)]
    tallest = bool(random.integers(0, 2))
    question = "who is tallest" if tallest else "who is smallest"
    answers = [str(name) for name in random.permutation(order)]
    right = answers.index(order[0] if tallest else order[-1])
    return [LabeledExample((f"{_write_facts(list(itertools.pairwise(order)), random)} . {question}", *answers), right)]


def transitive_closure(facts: Sequence[Fact]) -> set[Fact]:
    """Return the facts and all that follows from them."""
    closure = set(facts)
    while new := {(a, d) for a, b in closure for c, d in closure if b == c} - closure:
        closure |= new
    return closure


def entailment_label(fact: Fact, closure: set[Fact]) -> int:
    """Return the class of a hypothesis: 0 entailment, 1 neutral, 2 contradiction.

    Args:
        fact: The hypothesis.
        closure: The transitive closure of the premise.
    """
    return 0 if fact in closure else 2 if fact[::-1] in closure else 1


def _write_facts(facts: Sequence[Fact], random: np.random.Generator) -> str:
    """Write facts in random order, each in either direction."""
    clauses = []
    for place in random.permutation(len(facts)):
        first, second = facts[place]
        clauses.append(
            f"{first} is taller than {second}" if random.random() < 0.5 else f"{second} is smaller than {first}"
        )
    return " and ".join(clauses)


def _sort_facts(text: str) -> str:
    """Write facts in alphabetical order, each as who is taller than whom."""
    clauses = (clause.split(" is smaller than ") for clause in text.split(" and "))
    return " and ".join(sorted(" is taller than ".join(reversed(names)) for names in clauses))


@dataclasses.dataclass(frozen=True)
class GrammarProblem:
    """A synthetic problem.

    Attributes:
        layout: The layout of its texts.
        num_texts: The number of texts in an example.
        classes: The names of its classes; empty for scores and choices.
        sample_examples: A function that samples one or two examples.
        identify: A function from their texts to what no other example has that says the same in another order.
    """

    layout: SequenceLayout
    num_texts: int
    classes: tuple[str, ...]
    sample_examples: Callable[[np.random.Generator], list[LabeledExample]]
    identify: Callable[[Sequence[str]], str]


PROBLEMS: Mapping[str, GrammarProblem] = {
    "acceptability": GrammarProblem(
        SequenceLayout.SINGLE, 1, ("unacceptable", "acceptable"), sample_acceptability, "\n".join
    ),
    "entailment": GrammarProblem(
        SequenceLayout.PAIR,
        2,
        ("entailment", "neutral", "contradiction"),
        sample_entailment,
        lambda texts: f"{_sort_facts(texts[0])}\n{texts[1]}",
    ),
    "similarity": GrammarProblem(
        SequenceLayout.UNORDERED,
        2,
        (),
        sample_similarity,
        lambda texts: "\n".join(sorted(" and ".join(sorted(text.split(" and "))) for text in texts)),
    ),
    # The answers are the people of the facts, in any order.
    "choice": GrammarProblem(
        SequenceLayout.CHOICE,
        1 + ANSWERS,
        (),
        sample_choice,
        lambda texts: "\n".join(map(_sort_facts, texts[0].split(" . "))),
    ),
}


@dataclasses.dataclass(frozen=True)
class GrammarDatasetConfig(Config):
    """How often each split is sampled; a hash of what an example says tells which split it belongs to.

    Attributes:
        train: The number of training draws.
        validation: The number of validation draws.
        test: The number of test draws.
        seed: The seed; a split is drawn from seed and split.
    """

    train: PositiveInt = 4096
    validation: PositiveInt = 256
    test: PositiveInt = 256
    seed: int = 0


def find_problem(problem_spec: str) -> GrammarProblem:
    """Return the problem of a name such as "entailment" or "entailment/train=512".

    Raises:
        UserError: If it is unknown.
    """
    name = problem_spec.partition("/")[0]
    if name not in PROBLEMS:
        raise UserError(f"config.task.dataset='grammar/{problem_spec}' is unknown: {suggest_nearest(name, PROBLEMS)}")
    return PROBLEMS[name]


def generate_grammar_examples(problem_spec: str) -> dict[str, list[LabeledExample]]:
    """Generate the examples of a problem by split.

    Args:
        problem_spec: The problem and its options, fields of `GrammarDatasetConfig`, as in
            "entailment/train=512,test=64".

    Raises:
        UserError: If the problem or an option is unknown, a value is not a whole number, or sizes are impossible.
    """
    name, _, options = problem_spec.partition("/")
    problem = find_problem(problem_spec)
    return sample_splits(
        f"grammar/{name}",
        options,
        problem.sample_examples,
        lambda examples: problem.identify([text for example in examples for text in example.texts]),
    )


def sample_splits[T](
    name: str,
    options: str,
    sample_examples: Callable[[np.random.Generator], list[T]],
    identify: Callable[[list[T]], str] | None = None,
) -> dict[str, list[T]]:
    """Sample the examples of every split, of which no two share one.

    Args:
        name: The name of the data set, for messages.
        options: Fields of `GrammarDatasetConfig`, as in "train=512,test=64".
        sample_examples: A function that samples one or more examples, which stay in one split.
        identify: A function from what it samples to the text whose hash says which split they belong to. None for a set
            with so many examples that few recur: what the test split has is left out of the others, and what the
            validation split has of training.

    Raises:
        UserError: If an option is unknown, a value is not a whole number, or a size is below 1.
    """
    sizes = from_config(GrammarDatasetConfig, parse_int_options(name, options, "train=512,test=64"), name)
    held_out = set[tuple[T, ...]]()

    def sample_split(split: str) -> list[T]:
        random = np.random.default_rng((sizes.seed, SPLITS.index(split)))

        def belongs(examples: list[T]) -> bool:
            return hash_split(identify(examples)) == split if identify else tuple(examples) not in held_out

        candidates = (sample_examples(random) for _ in itertools.count())
        sampled = take_examples(candidates, getattr(sizes, split), belongs, name, split)
        held_out.update(map(tuple, sampled))
        return [example for examples in sampled for example in examples]

    sampled_last_first = {split: sample_split(split) for split in reversed(SPLITS)}
    return {split: sampled_last_first[split] for split in SPLITS}
