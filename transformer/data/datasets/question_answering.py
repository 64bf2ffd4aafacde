"""Open any data set of questions whose answers are spans of a context."""

import functools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformer.config import UserError, suggest_nearest
from transformer.data.datasets.local_files import (
    NOTHING_HELD_OUT,
    HeldOutFiles,
    divide_into_splits,
    read_json_lines,
    read_own_files,
    read_text,
)
from transformer.data.datasets.synthetic_fine_tuning import sample_splits
from transformer.data.datasets.synthetic_questions import sample_question
from transformer.data.extractive_questions import Answer, ExtractiveQuestion
from transformer.storage.json_reading import parse_json, require_object

ENDINGS = (".json", ".jsonl")
# The fraction of questions that have an answer, by data set.
GENERATED = {"questions": 1.0, "unanswerable_questions": 2 / 3}


def is_question_file(name: str) -> bool:
    """Whether a name is that of a file of questions."""
    return pathlib.PurePath(name).suffix.lower() in ENDINGS


def check_question_dataset(name: str) -> None:
    """Check the name of a data set without reading it.

    Raises:
        UserError: If it is unknown.
    """
    kind, _, problem_spec = name.partition("/")
    if not is_question_file(name) and (kind != "grammar" or problem_spec.partition("/")[0] not in GENERATED):
        known_names = *(f"grammar/{problem}" for problem in GENERATED), "FILE.json", "FILE.jsonl"
        raise UserError(f"config.task.dataset={name!r} is unknown: {suggest_nearest(name, known_names)}")


def open_questions(
    name: str, *, data_dir: str | None = None, held_out: HeldOutFiles = NOTHING_HELD_OUT
) -> Mapping[str, Sequence[ExtractiveQuestion]]:
    """Read the questions of a data set by split.

    Args:
        name: "grammar/questions", which are generated, or "grammar/unanswerable_questions", of which a third has no
            answer (transformer.data.datasets.synthetic_questions); "FILE.json", as SQuAD 1.1 and 2.0 have it; or
            "FILE.jsonl", an object a line with `question`, `context` and `answers`, as Hugging Face writes SQuAD. A
            question without an answer says `is_impossible` in the first and has empty lists in the second.
        data_dir: The folder of the data.
        held_out: The files of splits that have files of their own.

    Raises:
        UserError: If the name is unknown, or files are missing or malformed.
    """
    check_question_dataset(name)
    if not is_question_file(name):
        held_out.refuse(name)
        problem, _, options = name.removeprefix("grammar/").partition("/")
        sample = functools.partial(sample_question, answerable=GENERATED[problem])
        return sample_splits(f"grammar/{problem}", options, sample)
    read = read_own_files(name, data_dir, held_out, read_questions)
    # Questions about one context stay in one split.
    return divide_into_splits(name, read, lambda question: question.context)


def read_questions(path: pathlib.Path) -> list[ExtractiveQuestion]:
    """Read the questions of a file.

    Raises:
        UserError: If the file is unreadable, has no questions, or has one that is malformed.
    """
    if not is_question_file(path.name):
        raise UserError(f"{path} is neither .json nor .jsonl, the two kinds of file with questions")
    read = _read_squad if path.suffix.lower() == ".json" else _read_jsonl_questions
    questions = list(read(path))
    if not questions:
        raise UserError(f"{path} has no questions")
    return questions


def _read_squad(path: pathlib.Path) -> Iterator[ExtractiveQuestion]:
    document = require_object(parse_json(read_text(path), str(path)), str(path))
    for article in _get_objects(document, "data", str(path)):
        for paragraph in _get_objects(article, "paragraphs", f"{path}: an article"):
            context = _get_text(paragraph, "context", f"{path}: a paragraph")
            for question_fields in _get_objects(paragraph, "qas", f"{path}: the paragraph {context[:40]!r}"):
                question = _get_text(question_fields, "question", f"{path}: a question about {context[:40]!r}")
                where = f"{path}: the question {question[:60]!r}"
                pairs = [
                    (answer.get("text"), answer.get("answer_start"))
                    for answer in _get_objects(question_fields, "answers", where)
                ]
                impossible = _is_impossible(question_fields, where)
                if not pairs and not impossible:
                    raise UserError(f"{where} has no answers and does not say is_impossible: true: add either")
                yield ExtractiveQuestion(question, context, _parse_answers(pairs, context, impossible, where))


def _read_jsonl_questions(path: pathlib.Path) -> Iterator[ExtractiveQuestion]:
    for where, fields in read_json_lines(path):
        question, context = _get_text(fields, "question", where), _get_text(fields, "context", where)
        if "answers" not in fields:
            raise UserError(
                f"{where} has no field 'answers'; its fields are {', '.join(map(str, fields))}: a question without an "
                'answer has {"text": [], "answer_start": []}'
            )
        answers = require_object(fields["answers"], f"{where}: answers")
        texts, starts = answers.get("text"), answers.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise UserError(f"{where}: its answers need two lists of one length, text and answer_start")
        pairs = list(zip(texts, starts, strict=True))
        yield ExtractiveQuestion(
            question, context, _parse_answers(pairs, context, _is_impossible(fields, where), where)
        )


def _get_objects(fields: Mapping[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    listed = fields.get(name)
    if not isinstance(listed, list):
        raise UserError(f"{where} has no list {name!r}, which the format of SQuAD has")
    return [require_object(entry, f"{where}: an entry of {name}") for entry in listed]


def _get_text(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where} has no text in {name!r}: {json.dumps(value)[:40]}")
    return value


def _is_impossible(fields: Mapping[str, Any], where: str) -> bool:
    """Whether a question says that it has no answer; SQuAD 1.1 and Hugging Face's lines have no such key."""
    impossible = fields.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise UserError(f"{where} has is_impossible={impossible!r:.60}, which is neither true nor false")
    return impossible


def _parse_answers(pairs: Sequence[tuple[Any, Any]], context: str, impossible: bool, where: str) -> tuple[Answer, ...]:
    """Return the answers of a question from their texts and first characters.

    Raises:
        UserError: If one is malformed or not in the context, or the question says that it has none.
    """
    for text, start in pairs:
        if not isinstance(text, str) or type(start) is not int or start < 0:
            raise UserError(
                f"{where} has the answer {text!r:.60} at {start!r:.60}: it needs a text and its first character"
            )
        if impossible:
            raise UserError(f"{where} says is_impossible, and has the answer {text[:40]!r}: remove one of the two")
        if context[start : start + len(text)] != text or not text.strip():
            raise UserError(
                f"{where} has the answer {text[:40]!r}, but character {start} of its context begins "
                f"{context[start : start + len(text)][:40]!r}: answer_start must say where the answer is"
            )
    return tuple(Answer(text, start) for text, start in pairs)
