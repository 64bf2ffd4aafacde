"""Instructions for walks in mazes: clauses from templates, the actions that each means, and parsing."""

import difflib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.instruction_following.mazes import FLOORS, NONE, OBJECTS, Action, Maze

FORWARD, LEFT, RIGHT = Action
_TURN = {"left": LEFT, "right": RIGHT}
_QUARTERS = {"left": 3, "right": 1}  # clockwise
_BLOCKS = {"one block": 1, "two blocks": 2, "three blocks": 3}
VALUES: dict[str, tuple[str, ...]] = {
    "side": tuple(_TURN),
    "blocks": tuple(_BLOCKS),
    "floor": FLOORS,
    "object": OBJECTS,
}
CONJUNCTIONS = (".", ",", "then", "and")
TURN_PROB = 0.3  # the share of clauses that may only turn, where the one before walks
_JOINED = ((".",), (",", "then"), ("then",), ("and",), ("and", "then"))

Words = Mapping[str, str]
# What one does who follows a clause at a pose: the actions; None where it cannot be followed or means two things.
FollowClause = Callable[[Maze, int, Words], "list[Action] | None"]


def _follow_turn(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    return [_TURN[words["side"]]]


def _follow_reversal(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    return [RIGHT, RIGHT]


def _follow_face(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    """Turn to the left or right hall, if it alone has this floor."""
    floors = [maze.floor_index_ahead(pose, quarters) for quarters in (0, 3, 1)]
    floor = FLOORS.index(words["floor"])
    return [LEFT if floors[1] == floor else RIGHT] if floors.count(floor) == 1 and floors[0] != floor else None


def _follow_go(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    count = _BLOCKS[words["blocks"]]
    return [FORWARD] * count if count <= len(maze.poses_ahead(pose)) else None


def _follow_to_end(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    return [FORWARD] * len(maze.poses_ahead(pose)) or None


def _follow_to_object(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    """Walk to the first such object ahead; not if one stands here."""
    target, passed = OBJECTS.index(words["object"]), maze.poses_ahead(pose)
    objects = [maze.object_index_at(position) for position in passed]
    return (
        [FORWARD] * (objects.index(target) + 1) if target in objects and maze.object_index_at(pose) != target else None
    )


def _follow_to_crossing(maze: Maze, pose: int, words: Words, quarters: Sequence[int] = (3, 1)) -> list[Action] | None:
    """Walk to the first crossing ahead from which a hall with this floor leaves to a side; not if one does here."""
    floor = FLOORS.index(words["floor"])

    def leaves(at: int) -> bool:
        return any(maze.floor_index_ahead(at, turned) == floor for turned in quarters)

    crossing = [leaves(at) for at in maze.poses_ahead(pose)]
    return [FORWARD] * (crossing.index(True) + 1) if True in crossing and not leaves(pose) else None


def _follow_past_object(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    reached = _follow_to_object(maze, pose, words)
    return [*reached, FORWARD] if reached is not None and len(reached) < len(maze.poses_ahead(pose)) else None


def _follow_turn_at_object(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    reached = _follow_to_object(maze, pose, words)
    return None if reached is None else [*reached, _TURN[words["side"]]]


def _follow_turn_at_end(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    reached = _follow_to_end(maze, pose, words)
    return None if reached is None else [*reached, _TURN[words["side"]]]


def _follow_turn_onto(maze: Maze, pose: int, words: Words) -> list[Action] | None:
    reached = _follow_to_crossing(maze, pose, words, (_QUARTERS[words["side"]],))
    return None if reached is None else [*reached, _TURN[words["side"]]]


class ClauseTemplate(NamedTuple):
    """A kind of clause.

    Attributes:
        phrases: Its phrasings, each with the same names of `VALUES` in braces.
        follow: Returns the actions that follow it at a pose; None if it cannot be followed or is ambiguous.
        moves_forward: Whether it does more than turn.
    """

    phrases: tuple[str, ...]
    follow: FollowClause
    moves_forward: bool = True

    @property
    def slots(self) -> tuple[str, ...]:
        """The names in braces."""
        return tuple(name for name in VALUES if f"{{{name}}}" in self.phrases[0])

    def slot_values(self) -> list[dict[str, str]]:
        """Return all values for the names in braces."""
        filled = itertools.product(*(VALUES[name] for name in self.slots))
        return [dict(zip(self.slots, values, strict=True)) for values in filled]


CLAUSE_TEMPLATES = (
    ClauseTemplate(("turn {side}", "make a {side} turn", "turn to the {side}"), _follow_turn, moves_forward=False),
    ClauseTemplate(("turn around", "face the other way"), _follow_reversal, moves_forward=False),
    ClauseTemplate(
        ("face the {floor} hall", "turn to the {floor} hall", "turn so that you see the {floor} floor"),
        _follow_face,
        False,
    ),
    ClauseTemplate(("walk {blocks}", "go forward {blocks}", "move {blocks} ahead"), _follow_go),
    ClauseTemplate(
        ("walk to the end of the hall", "go forward until you reach the wall", "follow the hall to its end"),
        _follow_to_end,
    ),
    ClauseTemplate(
        ("walk to the {object}", "go forward until you reach the {object}", "move to the {object}"), _follow_to_object
    ),
    ClauseTemplate(
        ("walk until the {floor} hall crosses", "go to the crossing with the {floor} hall"), _follow_to_crossing
    ),
    ClauseTemplate(("walk one block past the {object}", "go one block beyond the {object}"), _follow_past_object),
    ClauseTemplate(
        ("turn {side} at the {object}", "at the {object} turn {side}", "go {side} at the {object}"),
        _follow_turn_at_object,
    ),
    ClauseTemplate(("turn {side} at the end of the hall", "where the hall ends turn {side}"), _follow_turn_at_end),
    ClauseTemplate(("turn {side} onto the {floor} hall", "take the {floor} hall to the {side}"), _follow_turn_onto),
)


class Clause(NamedTuple):
    """A clause.

    Attributes:
        words: Its words.
        template: Its template.
        slot_values: The values of the names in braces.
    """

    words: tuple[str, ...]
    template: ClauseTemplate
    slot_values: Words

    def follow(self, maze: Maze, pose: int) -> list[Action] | None:
        """Return the actions that follow it at a pose; None if it cannot be followed or is ambiguous."""
        return self.template.follow(maze, pose, self.slot_values)


def _all_clauses() -> dict[str, Clause]:
    every = {}
    for template in CLAUSE_TEMPLATES:
        for phrase, filled in itertools.product(template.phrases, template.slot_values()):
            text = phrase.format(**filled)
            every[text] = Clause(tuple(text.split()), template, filled)
    return every


CLAUSES = _all_clauses()
_TEMPLATES = tuple((template, template.slot_values()) for template in CLAUSE_TEMPLATES)
WORDS = (*CONJUNCTIONS, *sorted({word for clause in CLAUSES.values() for word in clause.words} - set(CONJUNCTIONS)))


class Instruction(NamedTuple):
    """An instruction of several clauses.

    Attributes:
        words: Its words.
        clauses: Its clauses.
        clause_of_word: The index of the clause that each word belongs to; NONE for words that join clauses.
    """

    words: tuple[str, ...]
    clauses: tuple[Clause, ...]
    clause_of_word: tuple[int, ...]


class Walk(NamedTuple):
    """The walk that follows an instruction.

    Attributes:
        actions: The actions.
        clause_of_action: The index of the clause that each action follows.
        poses: The poses, the start first.
    """

    actions: tuple[Action, ...]
    clause_of_action: tuple[int, ...]
    poses: tuple[int, ...]


def max_instruction_length(clauses: int) -> int:
    """Return the most words of an instruction of so many clauses."""
    max_joint_length = max(map(len, _JOINED))
    return clauses * (max(len(clause.words) for clause in CLAUSES.values()) + max_joint_length)


def follow_instruction(maze: Maze, start: int, clauses: Sequence[Clause]) -> Walk | None:
    """Return the walk that follows all clauses; None if one of them cannot be followed.

    Args:
        maze: The maze.
        start: The first pose.
        clauses: The clauses.

    Returns:
        The walk.
    """
    actions: list[Action] = []
    clause_of_action: list[int] = []
    poses = [start]
    for number, clause in enumerate(clauses):
        clause_actions = clause.follow(maze, poses[-1])
        if clause_actions is None:
            return None
        for action in clause_actions:
            poses.append(maze.pose_after(poses[-1], action))
        actions += clause_actions
        clause_of_action += [number] * len(clause_actions)
    return Walk(tuple(actions), tuple(clause_of_action), tuple(poses))


def sample_instruction(maze: Maze, start: int, count: int, random: np.random.Generator) -> tuple[Instruction, Walk]:
    """Sample an instruction that can be followed from a pose; no two successive clauses only turn.

    Args:
        maze: The maze.
        start: The first pose.
        count: The number of clauses.
        random: The random generator.

    Returns:
        The instruction, and the walk that follows it.
    """
    pose = start
    clauses: list[Clause] = []
    for _ in range(count):
        turned = bool(clauses) and not clauses[-1].template.moves_forward
        clause = _draw_clause(maze, pose, random, walks=turned or random.random() >= TURN_PROB)
        clauses.append(clause)
        for action in clause.follow(maze, pose) or ():
            pose = maze.pose_after(pose, action)
    words: list[str] = []
    clause_of_word: list[int] = []
    for number, clause in enumerate(clauses):
        joint = _JOINED[random.integers(len(_JOINED))] if number + 1 < count else (".",)
        words += [*clause.words, *joint]
        clause_of_word += [number] * len(clause.words) + [NONE] * len(joint)
    walk = follow_instruction(maze, start, clauses)
    assert walk is not None
    return Instruction(tuple(words), tuple(clauses), tuple(clause_of_word)), walk


def _draw_clause(maze: Maze, pose: int, random: np.random.Generator, *, walks: bool) -> Clause:
    """Sample a clause that can be followed: a random template, and a random filling and phrase of it.

    With `walks` the clause does not only turn, unless a wall ahead allows nothing else.
    """
    for number in random.permutation(len(_TEMPLATES)):
        template, fillings = _TEMPLATES[number]
        if template.moves_forward or not walks or maze.floor_index_ahead(pose) == NONE:
            fit = [filled for filled in fillings if template.follow(maze, pose, filled) is not None]
            if fit:
                phrase = template.phrases[random.integers(len(template.phrases))]
                return CLAUSES[phrase.format(**fit[random.integers(len(fit))])]
    raise AssertionError("one can turn anywhere")


def parse_instruction(text: str) -> Instruction:
    """Parse the instruction of a text such as "turn left . walk to the lamp"; a missing final period is added.

    Raises:
        ValueError: If the text has no clause, or a clause is not of the templates. The message is one line.
    """
    words = text.lower().replace(".", " . ").replace(",", " , ").split()
    if not words or words[-1] != ".":
        words.append(".")
    clauses: list[Clause] = []
    clause_of_word: list[int] = []
    for joint, group in itertools.groupby(words, key=CONJUNCTIONS.__contains__):
        part = list(group)
        if joint:
            clause_of_word += [NONE] * len(part)
            continue
        clause_text = " ".join(part)
        if clause_text not in CLAUSES:
            clause_text = clause_text[:60]  # as much as a line can show
            nearest = difflib.get_close_matches(clause_text, CLAUSES, n=1, cutoff=0)
            raise ValueError(f"{clause_text!r} is no clause that is known; the nearest: {nearest[0]!r}")
        clause_of_word += [len(clauses)] * len(part)
        clauses.append(CLAUSES[clause_text])
    if not clauses:
        raise ValueError("it has no clause")
    return Instruction(tuple(words), tuple(clauses), tuple(clause_of_word))
