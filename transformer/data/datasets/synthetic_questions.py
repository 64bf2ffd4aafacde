"""Synthetic questions about a text, whose answers are words of the text that only its grammar tells."""

import numpy as np

from transformer.data.datasets.synthetic_fine_tuning import PEOPLE, THINGS
from transformer.data.extractive_questions import Answer, ExtractiveQuestion

PLACES = ("kitchen", "garden", "cellar", "office", "hall", "barn")
FACTS = 3
QUESTIONS = ("who has THING", "what does PERSON have", "where is PERSON", "where is THING")
ANSWERS = ("PERSON", "THING", "PLACE", "PLACE")


def sample_question(random: np.random.Generator, *, answerable: float = 1.0) -> list[ExtractiveQuestion]:
    """Sample facts about three people, and a question about one of them.

    Args:
        random: The generator.
        answerable: The fraction of questions that have an answer. The others ask about a person or a thing that the
            text does not have.
    """
    people = random.choice(PEOPLE, FACTS + 1, replace=False)
    things = random.choice(THINGS, FACTS + 1, replace=False)
    places = random.choice(PLACES, FACTS + 1, replace=False)
    entities = [
        {"PERSON": f"{person}", "THING": f"the {thing}", "PLACE": f"the {place}"}
        for person, thing, place in zip(people, things, places, strict=True)
    ]
    facts = [f"{entity['PERSON']} has {entity['THING']} in {entity['PLACE']} ." for entity in entities[:FACTS]]
    context = " ".join(facts)
    fact_number, kind = int(random.integers(FACTS)), int(random.integers(len(QUESTIONS)))
    if random.random() >= answerable:
        return [ExtractiveQuestion(_write_question(kind, entities[FACTS]), context, ())]
    # An answer is a part of its own fact: a place may be that of several in other texts.
    fact_start = sum(len(fact) + 1 for fact in facts[:fact_number])
    text = entities[fact_number][ANSWERS[kind]]
    return [
        ExtractiveQuestion(
            _write_question(kind, entities[fact_number]),
            context,
            (Answer(text, fact_start + facts[fact_number].index(text)),),
        )
    ]


def _write_question(kind: int, attributes: dict[str, str]) -> str:
    question = QUESTIONS[kind]
    for name, text in attributes.items():
        question = question.replace(name, text)
    return question
