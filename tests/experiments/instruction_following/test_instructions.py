"""Instructions in a maze drawn by hand, those that are drawn, and what is read of a text."""

import numpy as np
import pytest

from experiments.instruction_following.instructions import (
    CLAUSES,
    CONJUNCTIONS,
    WORDS,
    follow_instruction,
    max_instruction_length,
    parse_instruction,
    sample_instruction,
)
from experiments.instruction_following.mazes import FLOORS, NONE, OBJECTS, Maze, sample_maze

EAST = 1


def by_hand() -> Maze:
    """Three by three crossings.

    0 -brick- 1 -brick- 2      a lamp at 1, a sofa at 2, a chair at 0
              |         |
             wood     grass
              |         |
    3 ------- 4 -blue-- 5
              |
             wood
              |
    6         7         8
    """
    floors = [[NONE] * 4 for _ in range(9)]
    for crossing, heading, floor in ((0, 1, "brick"), (1, 1, "brick"), (1, 2, "wood"), (2, 2, "grass")):
        floors[crossing][heading] = FLOORS.index(floor)
    for crossing, heading, floor in ((3, 1, "blue"), (4, 1, "blue"), (4, 2, "wood")):
        floors[crossing][heading] = FLOORS.index(floor)
    for crossing in range(9):
        for heading, step in ((1, 1), (2, 3)):
            if floors[crossing][heading] != NONE:
                floors[crossing + step][heading + 2 - 4 * (heading == 2)] = floors[crossing][heading]
    objects = [NONE] * 9
    for crossing, name in ((0, "chair"), (1, "lamp"), (2, "sofa")):
        objects[crossing] = OBJECTS.index(name)
    return Maze(3, tuple(map(tuple, floors)), tuple(objects))


# From the chair, looking along the brick hall: f steps, l and r turn; None where it cannot be followed.
AT_THE_CHAIR = {
    "turn left": "l",
    "make a right turn": "r",
    "turn around": "rr",
    "walk one block": "f",
    "go forward two blocks": "ff",
    "move three blocks ahead": None,
    "walk to the end of the hall": "ff",
    "walk to the lamp": "f",
    "go forward until you reach the sofa": "ff",
    "walk to the chair": None,  # here already
    "walk to the easel": None,
    "walk until the wood hall crosses": "f",
    "go to the crossing with the grass hall": "ff",
    "walk until the blue hall crosses": None,
    "walk one block past the lamp": "ff",
    "go one block beyond the sofa": None,  # into the wall
    "turn left at the lamp": "fl",
    "at the sofa turn right": "ffr",
    "turn right at the end of the hall": "ffr",
    "turn right onto the wood hall": "fr",
    "take the grass hall to the right": "ffr",
    "turn left onto the wood hall": None,  # it leaves to the right alone
    "face the brick hall": None,  # it is faced
    "face the wood hall": None,
}


@pytest.mark.parametrize("text", AT_THE_CHAIR)
def test_what_a_clause_means(text: str) -> None:
    walk = follow_instruction(by_hand(), EAST, (CLAUSES[text],))
    wanted = AT_THE_CHAIR[text]
    assert (None if walk is None else "".join(action.name[0].lower() for action in walk.actions)) == wanted


def test_a_hall_is_faced_that_is_the_one_to_be_seen_with_its_floor() -> None:
    maze, lamp = by_hand(), 4
    for heading, text, wanted in (
        (1, "turn to the wood hall", "RIGHT"),
        (3, "face the wood hall", "LEFT"),
        (2, "turn so that you see the brick floor", None),  # on both sides
        (0, "face the wood hall", None),  # behind
    ):
        walk = follow_instruction(maze, lamp + heading, (CLAUSES[text],))
        assert (None if walk is None else walk.actions[0].name) == wanted


def test_what_one_stands_at_already_is_no_place_to_go_to() -> None:
    """Two wood halls leave the brick one, at the lamp and at the sofa: at the lamp it is not said which is meant."""
    maze = by_hand()
    floors = [list(of_crossing) for of_crossing in maze.floors]
    floors[2][2] = floors[5][0] = FLOORS.index("wood")
    maze, chair, lamp = maze._replace(floors=tuple(map(tuple, floors))), 0, 4
    for text in ("turn right onto the wood hall", "walk until the wood hall crosses"):
        walk = follow_instruction(maze, chair + EAST, (CLAUSES[text],))
        assert walk is not None
        assert walk.actions[0].name == "FORWARD"
        assert "FORWARD" not in {action.name for action in walk.actions[1:]}
        assert follow_instruction(maze, lamp + EAST, (CLAUSES[text],)) is None


def test_clauses_follow_one_another_and_actions_know_theirs() -> None:
    instruction = parse_instruction("Turn right onto the wood hall, then walk to the end of the hall. turn left")
    assert " ".join(instruction.words).endswith(". turn left .")
    assert "".join("-abc"[number + 1] for number in instruction.clause_of_word) == "aaaaaa--bbbbbbb-cc-"
    walk = follow_instruction(by_hand(), EAST, instruction.clauses)
    assert walk is not None
    assert [action.name for action in walk.actions] == ["FORWARD", "RIGHT", "FORWARD", "FORWARD", "LEFT"]
    assert walk.clause_of_action == (0, 0, 1, 1, 2)
    assert walk.poses == (1, 5, 6, 18, 30, 29)
    assert follow_instruction(by_hand(), EAST, parse_instruction("walk two blocks . walk one block .").clauses) is None


def test_drawn_instructions_can_be_followed_are_read_as_they_were_meant_and_vary() -> None:
    random, forms = np.random.default_rng(0), set()
    for _ in range(300):
        maze = sample_maze(random, 4)
        count, start = int(random.integers(1, 4)), int(random.integers(maze.num_poses))
        instruction, walk = sample_instruction(maze, start, count, random)
        assert parse_instruction(" ".join(instruction.words)) == instruction
        assert follow_instruction(maze, start, instruction.clauses) == walk
        assert len(instruction.clauses) == count
        assert set(walk.clause_of_action) == set(range(count))
        assert len(instruction.words) <= max_instruction_length(count)
        forms |= {clause.template.phrases for clause in instruction.clauses}
        for number in range(1, count):
            begins = walk.poses[walk.clause_of_action.index(number)]
            if not any(clause.template.moves_forward for clause in instruction.clauses[number - 1 : number + 1]):
                assert maze.floor_index_ahead(begins) == NONE  # a wall ahead: one can do nothing but turn
    assert len(forms) == 11


def test_no_clause_holds_what_joins_clauses() -> None:
    for text, clause in CLAUSES.items():
        assert text == " ".join(clause.words)
        assert not set(clause.words) & set(CONJUNCTIONS)
    assert len(set(WORDS)) == len(WORDS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("jump to the lamp .", "'jump to the lamp' is no clause that is known; the nearest: 'move to the lamp'"),
        ("", "it has no clause"),
        (". then", "it has no clause"),
    ],
)
def test_what_is_no_instruction_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_instruction(text)
