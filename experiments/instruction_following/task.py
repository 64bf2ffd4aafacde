"""Instruction following in mazes: from an instruction to actions, evaluated by where they end."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, UInt8

from experiments.instruction_following import instructions, mazes
from experiments.instruction_following.instructions import Instruction, Walk
from experiments.instruction_following.maze_images import paint_walk
from experiments.instruction_following.mazes import Action, Heading, Maze
from experiments.instruction_following.signature import INSTRUCTION_FOLLOWING
from experiments.instruction_following.transition_tables import follow_transitions
from transformer.attention.sites import Site, sites_between
from transformer.config import BatchSize, Config, NumBeams, NumDisplayedExamples, NumExamples, Range, UserError
from transformer.data.batches import (
    PROBE_SEED,
    TEST_SEED,
    VALIDATION_SEED,
    BatchSource,
    GeneratedBatches,
    random_generator,
)
from transformer.models.task_interface import InputSpec, Modality
from transformer.tasks.attention_mass import (
    attention_mass_sums,
    attention_mass_within,
    capture_weights,
    head_with_most_mass,
)
from transformer.tasks.axis_labels import AxisLabels
from transformer.tasks.base_task import check_batch_size, make_capture_function, report_means
from transformer.tasks.sequence_generation_base import (
    END,
    PAD,
    SPECIAL,
    SymbolSequenceTask,
    gold_alignments_from_mask,
    keep_correct_gold_alignments,
)
from transformer.tasks.task import (
    Batch,
    Evaluation,
    EvaluationReport,
    PredictionRequest,
    Predictions,
    StateView,
    TaskSpec,
)

ACTIONS = tuple(action.name.lower() for action in Action)
WORDS = (SPECIAL[PAD], *instructions.WORDS)
_NUMBERS = {word: number for number, word in enumerate(WORDS)}
AXES = ("target", "source")
_EXAMPLE = "turn left . walk to the lamp ."
_TRAINING_SEED = 0  # the seed of the mazes that are trained in
# Drawn mazes that are searched for a pose where a request's instruction can be followed.
_MAX_MAZES_TRIED = 200
_NUM_SAMPLES = 5  # walks to read beside what was right


NumMazes = Annotated[int, Range(1, 2**16)]
"""A number of mazes that are drawn one by one."""
NumClauses = Annotated[int, Range(1, 2**5)]
"""A number of clauses of one instruction."""


@dataclasses.dataclass(frozen=True)
class InstructionFollowingConfig(Config, path="config.task"):
    """Instructions in mazes, sampled anew at every step.

    Attributes:
        num_mazes: The training mazes.
        num_held_out_mazes: The validation mazes, and as many test mazes.
        maze_size: The crossings of a side of a maze.
        max_clauses: The most clauses of an instruction.
        max_actions: The most actions of a walk.
        batch_size: Instructions in a batch.
        num_eval_examples: Instructions to evaluate, rounded up to whole batches.
        num_beams: The beam size; 1 decodes greedily.
        num_probe_examples: Instructions whose maps are stored.

    Raises:
        UserError: If a value is out of range.
    """

    num_mazes: NumMazes = 200
    num_held_out_mazes: NumMazes = 50
    maze_size: Annotated[int, Range(2, 20)] = 6
    max_clauses: NumClauses = 3
    max_actions: int = 13
    batch_size: BatchSize = 32
    num_eval_examples: NumExamples = 1000
    num_beams: NumBeams = 1
    num_probe_examples: NumDisplayedExamples = 6

    def _check(self) -> None:
        # Two to turn around, or a straight way through a maze, and a turn.
        if self.max_actions < (min_actions := max(2, self.maze_size)):
            raise UserError(
                f"config.task.max_actions={self.max_actions} must be at least {min_actions}: a clause can have so many"
            )


class MazeTables(NamedTuple):
    """A maze with its observation and transition tables (experiments.instruction_following.transition_tables)."""

    maze: Maze
    observations: UInt8[np.ndarray, "P F"]
    transitions: Int[np.ndarray, "P V"]


class InstructedWalk(NamedTuple):
    """An instruction in a maze, and the walk that follows it."""

    maze_tables: MazeTables
    instruction: Instruction
    walk: Walk


class InstructionFollowing(SymbolSequenceTask):
    """Instruction following in mazes: implements transformer.tasks.task.Task."""

    def __init__(self, config: InstructionFollowingConfig, rows_multiple: int = 1):
        check_batch_size(config.batch_size, rows_multiple)
        self.config = config
        self.words, poses = instructions.max_instruction_length(config.max_clauses), 4 * config.maze_size**2
        numbers = len(SPECIAL) + len(ACTIONS)
        inputs = {
            "source": InputSpec((config.batch_size, self.words)),
            "observations": InputSpec(
                (config.batch_size, poses, mazes.NUM_OBSERVATION_FEATURES), jnp.uint8, Modality.POINTS
            ),
            "transitions": InputSpec((config.batch_size, poses, numbers), jnp.int32, Modality.ACTIONS),
            "start": InputSpec((config.batch_size,)),
        }
        options: dict[str, Any] = {"rows": config.batch_size, "num_beams": config.num_beams, "separator": " "}
        options |= {"output": INSTRUCTION_FOLLOWING.output, "vocabularies": {"source": len(WORDS)}}
        super().__init__("walking", ACTIONS, config.max_actions, inputs, **options)
        self.evaluations = (*self._evaluations("validation", VALIDATION_SEED), *self._evaluations("test", TEST_SEED))
        self._probe_walks = self._sample_walks(VALIDATION_SEED, random_generator(PROBE_SEED), config.num_probe_examples)
        self.set_probe_batch(self._batch(self._probe_walks))

    @property
    def data_summary(self) -> tuple[str, ...]:
        """A line on the numbers of mazes, words and instructions."""
        config, num_held_out = (
            self.config,
            -(-self.config.num_eval_examples // self.config.batch_size) * self.config.batch_size,
        )
        return (
            f"data mazes: {config.num_mazes:,} train, {config.num_held_out_mazes:,} validation, "
            f"{config.num_held_out_mazes:,} test; instructions of {len(WORDS) - 1} words drawn anew at every step, "
            f"{num_held_out:,} validation and {num_held_out:,} test",
        )

    def training_batches(self, seed: int) -> BatchSource:
        """Return an endless source of instructions in the training mazes, sampled anew at every step."""
        return GeneratedBatches(
            lambda random: self._batch(self._sample_walks(_TRAINING_SEED, random, self.config.batch_size)), seed
        )

    def _sample_walks(self, seed: int, random: np.random.Generator, count: int) -> list[InstructedWalk]:
        """Sample instructions in the mazes of a split, which its seed determines."""
        split_mazes = sample_mazes(
            seed, self.config.num_held_out_mazes if seed else self.config.num_mazes, self.config.maze_size
        )
        examples: list[InstructedWalk] = []
        while len(examples) < count:
            maze_tables = split_mazes[random.integers(len(split_mazes))]
            clauses, start = (
                int(random.integers(1, self.config.max_clauses + 1)),
                int(random.integers(maze_tables.maze.num_poses)),
            )
            example = InstructedWalk(
                maze_tables, *instructions.sample_instruction(maze_tables.maze, start, clauses, random)
            )
            examples += [example] if len(example.walk.actions) <= self.config.max_actions else []
        return examples

    def _batch(self, examples: Sequence[InstructedWalk]) -> dict[str, np.ndarray]:
        """Return the model's inputs, the number of clauses, and the clause of each word and each action."""
        source = np.full((len(examples), self.words), PAD, np.int32)
        word_clauses, action_clauses = (
            np.full((len(examples), count), mazes.NONE, np.int32) for count in (self.words, self.steps)
        )
        for row, (_, instruction, walk) in enumerate(examples):
            source[row, : len(instruction.words)] = [_NUMBERS[word] for word in instruction.words]
            word_clauses[row, : len(instruction.words)] = instruction.clause_of_word
            action_clauses[row, : len(walk.actions)] = walk.clause_of_action
        return {
            "source": source,
            "observations": np.stack([maze_tables.observations for maze_tables, _, _ in examples]),
            "transitions": np.stack([maze_tables.transitions for maze_tables, _, _ in examples]),
            "start": np.array([walk.poses[0] for _, _, walk in examples], np.int32),
            "goal": np.array([walk.poses[-1] for _, _, walk in examples], np.int32),
            "clauses": np.array([len(instruction.clauses) for _, instruction, _ in examples], np.int32),
            "clause_of_word": word_clauses,
            "clause_of_action": action_clauses,
            **self.encode_sequences([[ACTIONS[action] for action in walk.actions] for _, _, walk in examples]),
        }

    def _evaluations(self, split: str, seed: int) -> tuple[Evaluation, ...]:
        """Return the evaluations of the loss, the ends of decoded walks, and the attention at each action."""
        count, at_end = -(-self.config.num_eval_examples // self.config.batch_size), split == "test"
        held_out = GeneratedBatches(
            lambda random: self._batch(self._sample_walks(seed, random, self.config.batch_size)), seed
        )
        batches = [held_out[number] for number in range(count)]
        sources = [" ".join(self._decode_words(row)) for row in batches[0]["source"][:_NUM_SAMPLES]]
        true = list(zip(sources, self.format_lines(batches[0]["labels"]), strict=False))

        def finish(sums: Mapping[str, Any], rows: Mapping[str, np.ndarray]) -> EvaluationReport:
            own = self.format_lines(rows["tokens"][:_NUM_SAMPLES])
            samples = [{"source": a, "target": b, "output": c} for (a, b), c in zip(true, own, strict=False)]
            return success_report(sums, samples)

        return (
            Evaluation("loss", split, batches, self.loss_sums, report_means, at_end),
            Evaluation("walks", split, batches, self._walk_sums, finish, at_end),
            Evaluation(
                "looking", split, batches, self._attention_sums, attention_mass_report, at_end, required_axes=AXES
            ),
        )

    def _walk_sums(
        self, view: StateView, batch: Batch, key: Key[Array, ""]
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Sum the successes of decoded walks; one that does not stop in time has failed."""
        _, rows = self.decoding_step(view, batch, key)
        transitions, start, goal_B = (jnp.asarray(batch[name]) for name in ("transitions", "start", "goal"))
        # Neither the end nor what fills up the row behind it leads anywhere.
        end_B = follow_transitions(transitions, start, rows["tokens"])[:, -1]
        stopped_B = jnp.any(rows["tokens"] == END, axis=1)
        success_B = stopped_B & (end_B == goal_B)
        sums = {
            "walks": jnp.int32(len(goal_B)),
            "success": jnp.sum(success_B),
            "position_accuracy": jnp.sum(stopped_B & (end_B // 4 == goal_B // 4)),
            "exact_match": jnp.sum(jnp.all(rows["tokens"] == jnp.asarray(batch["labels"]), axis=1)),
        }
        for count in range(1, self.config.max_clauses + 1):
            has_count_B = jnp.asarray(batch["clauses"]) == count
            sums |= {f"walks/{count}": jnp.sum(has_count_B), f"success/{count}": jnp.sum(success_B & has_count_B)}
        return sums, rows

    def _attention_sums(self, view: StateView, batch: Batch, key: Key[Array, ""]) -> tuple[dict[str, Array], None]:
        """Sum the attention mass at the true actions within the clauses that they follow."""
        own_BxTxS = clause_mask(jnp.asarray(batch["clause_of_action"]), jnp.asarray(batch["clause_of_word"]))
        masses = {
            site: attention_mass_within(weights, own_BxTxS)
            for site, weights in capture_weights(view, self.model_inputs(batch), AXES).items()
        }
        words_B = jnp.sum(jnp.asarray(batch["source"]) != PAD, axis=1)
        even = jnp.sum(jnp.sum(own_BxTxS, axis=2) / words_B[:, None])
        return {
            "actions": jnp.sum(jnp.asarray(batch["clause_of_action"]) >= 0),
            "even": even,
            **attention_mass_sums(masses),
        }, None

    def axis_labels(self, sites: Sequence[Site]) -> AxisLabels:
        """Label the words, the actions, the image at each action, and the words of the clause that each follows."""
        return self._describe(self._probe_walks, self.probe_examples, sites, np.ones(len(self._probe_walks), bool))

    def _describe(
        self,
        examples: Sequence[InstructedWalk],
        batch: Mapping[str, np.ndarray],
        sites: Sequence[Site],
        right_B: Bool[np.ndarray, " B"],
    ) -> AxisLabels:
        """Label walks; for those that are not `right` it is unknown which words their actions follow."""
        names = {
            "target": tuple(map(self.name_steps, batch["labels"])),
            "source": tuple(map(self._decode_words, batch["source"])),
        }
        poses = [
            self._follow_row(maze_tables.maze, row, walk)
            for (maze_tables, _, walk), row in zip(examples, batch["labels"], strict=True)
        ]
        longest = max(map(len, names["target"]))
        images = [
            paint_walk(maze_tables.maze, (*walk_poses, *[walk_poses[-1]] * longest)[:longest])
            for (maze_tables, _, _), walk_poses in zip(examples, poses, strict=True)
        ]
        own = clause_mask(batch["clause_of_action"], batch["clause_of_word"])
        links = keep_correct_gold_alignments(gold_alignments_from_mask(own, sure=False), right_B)
        gold = {site.name: links for site in sites_between(sites, *AXES)}
        titles = tuple(map(" ".join, names["source"]))
        return AxisLabels(names, titles, gold or None, images={"target": np.stack(images)})

    def predict(self, view: StateView, request: PredictionRequest) -> Predictions:
        """Follow each text in a maze sampled by `--seed`, from a pose where it can be followed.

        Raises:
            UserError: If a language, samples, stop strings or a coverage penalty is given, a text is no instruction of
                the templates, or no sampled maze has a pose where it can be followed.
        """
        decoding = self.decoding(request, "walks", f"the longest walk has {self.steps} steps")
        random = np.random.default_rng(decoding.seed)
        examples = [self._sample_walk(text, random) for text in request.texts]
        true = self._batch(examples)
        decoded = self.generate_sequences(view, true, decoding)
        right, lines = [], []
        for (maze_tables, _, walk), row in zip(examples, decoded["labels"], strict=True):
            end = self._follow_row(maze_tables.maze, row, walk)[-1]
            right.append(END in row and end == walk.poses[-1])
            where = f"ends at {_pose_name(maze_tables.maze, end)}" if END in row else "does not stop"
            goal = "as asked" if right[-1] else f"asked for {_pose_name(maze_tables.maze, walk.poses[-1])}"
            lines.append(f"{' '.join(self.decode_symbols(row)) or 'stays'}: {where}, {goal}")
        labels = self._describe(examples, decoded, view.model.sites, (decoded["labels"] == true["labels"]).all(axis=1))
        return Predictions(lines, labels, make_capture_function(view, self.model_inputs(decoded)))

    def _sample_walk(self, text: str, random: np.random.Generator) -> InstructedWalk:
        """Place a text's instruction in a sampled maze."""
        try:
            instruction = instructions.parse_instruction(text)
        except ValueError as error:
            raise UserError(f"{text[:80]!r} is no instruction: {error}; say something like {_EXAMPLE!r}") from None
        for what, count, most in (
            ("clauses", len(instruction.clauses), self.config.max_clauses),
            ("words and marks", len(instruction.words), self.words),
        ):
            if count > most:
                raise UserError(f"{text[:80]!r} has {count} {what}: this run's instructions have at most {most}")
        for _ in range(_MAX_MAZES_TRIED):
            maze = mazes.sample_maze(random, self.config.maze_size)
            for start in random.permutation(maze.num_poses).tolist():
                walk = instructions.follow_instruction(maze, start, instruction.clauses)
                if walk is not None and len(walk.actions) <= self.config.max_actions:
                    return InstructedWalk(make_maze_tables(maze), instruction, walk)
        raise UserError(
            f"{text[:80]!r} can be followed from no place of {_MAX_MAZES_TRIED} drawn mazes: say something shorter"
        )

    def _decode_words(self, row: np.ndarray) -> tuple[str, ...]:
        return tuple(WORDS[number] for number in row.tolist() if number != PAD)

    def _follow_row(self, maze: Maze, row: np.ndarray, walk: Walk) -> list[int]:
        """Return the pose of each action of a row of `labels`, and where the last one leads."""
        poses = [walk.poses[0]]
        for action in self.decode_symbols(row):
            poses.append(maze.pose_after(poses[-1], ACTIONS.index(action)))
        return poses


def make_maze_tables(maze: Maze) -> MazeTables:
    """Return a maze with its tables; padding, begin and end tokens do not move."""
    stay_PxS = np.repeat(np.arange(maze.num_poses, dtype=np.int32)[:, None], len(SPECIAL), axis=1)
    return MazeTables(
        maze, mazes.observation_table(maze), np.concatenate([stay_PxS, mazes.transition_table(maze)], axis=1)
    )


@functools.cache
def sample_mazes(seed: int, count: int, side: int) -> tuple[MazeTables, ...]:
    """Sample mazes.

    Args:
        seed: The seed.
        count: The number of mazes.
        side: The number of crossings along each side.

    Returns:
        The tables of each maze.
    """
    random = np.random.default_rng((seed, side))
    return tuple(make_maze_tables(mazes.sample_maze(random, side)) for _ in range(count))


def clause_mask(action_clauses_BxT: Any, word_clauses_BxS: Any) -> Any:
    """Return which words belong to the clause that each action follows.

    Args:
        action_clauses_BxT: The clause of each action; NONE if it follows none.
        word_clauses_BxS: The clause of each word.

    Returns:
        A mask [B, T, S].
    """
    same_BxTxS = action_clauses_BxT[:, :, None] == word_clauses_BxS[:, None, :]
    return same_BxTxS & (action_clauses_BxT != mazes.NONE)[:, :, None]


def success_report(sums: Mapping[str, Any], samples: Sequence[Mapping[str, str]] = ()) -> EvaluationReport:
    """Report the rates of successful walks, of all and by number of clauses.

    `success`: the walk ends at the right crossing with the right heading (Mei et al. 2016, single sentences);
    `position_accuracy`: at the right crossing; `exact_match`: the actions are the reference's.

    Args:
        sums: The number of walks, and of successful ones by each criterion.
        samples: Samples to include.

    Returns:
        The report.
    """
    scalars = {
        name: float(sums[name]) / float(sums["walks"]) for name in ("success", "position_accuracy", "exact_match")
    }
    counts = [name.removeprefix("success/") for name in sums if name.startswith("success/")]
    for count in counts:
        scalars[f"success/{count}"] = float(sums[f"success/{count}"]) / max(float(sums[f"walks/{count}"]), 1)
    return EvaluationReport(scalars, samples, note=f"{int(sums['walks'])} walks in mazes that are not trained in")


def attention_mass_report(sums: Mapping[str, np.ndarray], rows: object) -> EvaluationReport:
    """Report the mean attention mass within an action's own clause, and that of uniform attention."""
    mass, site, layer, head = head_with_most_mass(sums)
    actions = max(float(sums["actions"]), 1)
    note = f"{site}, layer {layer}, head {head}; {int(sums['actions'])} actions"
    return EvaluationReport(
        {"attention_mass/clause": mass / actions, "attention_mass/clause_uniform": float(sums["even"]) / actions},
        note=note,
    )


def _pose_name(maze: Maze, pose: int) -> str:
    row, column = divmod(pose // 4, maze.side_length)
    return f"row {row + 1}, column {column + 1}, facing {Heading(pose % 4).name.lower()}"


TASK = TaskSpec(InstructionFollowingConfig, InstructionFollowing)
