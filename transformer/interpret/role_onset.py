"""Find the very step at which a head takes up a role, by replaying the run between two recorded map steps."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer.attention.sites import Site
from transformer.config import UserError
from transformer.interpret.replayed_step import compare_stored_maps, store_probe
from transformer.maps.head_roles import RoleScores, roles_played, score_role
from transformer.maps.report.role_descriptions import read_sample_rows
from transformer.maps.role_rules import Role
from transformer.maps.store import MapStore
from transformer.training.compiled_probe import Probe
from transformer.training.replay import Replay, StartingPoint, copy_state
from transformer.training.replay_comparison import Comparison, describe_comparisons


class Head(NamedTuple):
    """A head of an attention module.

    Attributes:
        site: The name of the module.
        layer: The index of the layer.
        head: The index of the head.
    """

    site: str
    layer: int
    head: int


class RoleOnset(NamedTuple):
    """The step at which a head took up a role.

    Attributes:
        head: The head.
        role: The role.
        step: The step: the head plays the role after it, and did not before it.
        score_before: Its score one step before.
        score: Its score at the step.
        bracket: The two known steps between which the onset was searched.
        num_probes: How many maps were computed for the search.
    """

    head: Head
    role: Role
    step: int
    score_before: float
    score: float
    bracket: tuple[int, int]
    num_probes: int


class RoleOnsets(NamedTuple):
    """The onsets of a role in a run.

    Attributes:
        onsets: The onset of every head, the first one first.
        notes: Heads of which there is none, and why.
        num_steps: How many steps were trained again for the search.
        verdict: Whether the replayed maps are those that the run stored, in one line.
    """

    onsets: tuple[RoleOnset, ...]
    notes: tuple[str, ...]
    num_steps: int
    verdict: str


def parse_role(text: str) -> Role:
    """Parse the name of a role, in which "_" may stand for a space.

    Raises:
        UserError: If there is no such role.
    """
    for role in Role:
        if role.value == text.replace("_", " "):
            return role
    raise UserError(f"--bisect={text} is no role of a head: choose one of {', '.join(map(name_role, Role))}")


def name_role(role: Role) -> str:
    """Return the name of a role as --bisect takes it, with "_" for a space."""
    return role.value.replace(" ", "_")


def parse_head(text: str, sites: Sequence[Site]) -> tuple[str, str]:
    """Parse LAYER.HEAD, the names of a layer and a head as the report shows them.

    Raises:
        UserError: If no module has such a layer and head.
    """
    layer, dot, head = text.partition(".")
    if dot and any(layer in map(str, site.layers) and head in map(str, site.heads) for site in sites):
        return layer, head
    names = ", ".join(f"{site.layers[0]}.{site.heads[0]} to {site.layers[-1]}.{site.heads[-1]}" for site in sites)
    raise UserError(f"--head={text} is no head of this model: write LAYER.HEAD, which are {names or 'none'}")


class _KnownScores:
    """The scores of a role at the steps whose maps are there: those that the run stored, and those of the search."""

    def __init__(self, role: Role):
        self._role = role
        self._stores: dict[int, MapStore] = {}
        self._scores: dict[tuple[int, str], RoleScores] = {}

    @property
    def steps(self) -> list[int]:
        """The steps, in order."""
        return sorted(self._stores)

    def add(self, step: int, store: MapStore) -> None:
        """Add a step whose maps are in a store."""
        self._stores[step] = store

    def plays(self, head: Head, step: int) -> bool:
        """Whether the head plays the role at a known step."""
        return bool(self._read(head.site, step).plays_LxH[head.layer, head.head])

    def score(self, head: Head, step: int) -> float:
        """The score of the head at a known step."""
        return float(self._read(head.site, step).scores_LxH[head.layer, head.head])

    def roles(self, sites: Sequence[Site], step: int) -> list[Role]:
        """The roles that heads of these modules play at a known step."""
        store = self._stores[step]
        played: set[Role] = set()
        for site in map(store.site, (site.name for site in sites)):
            played |= roles_played(read_sample_rows(store, site, step), site, store.labels)
        return [role for role in Role if role in played]

    def _read(self, site: str, step: int) -> RoleScores:
        if (step, site) not in self._scores:
            store = self._stores[step]
            rows = read_sample_rows(store, store.site(site), step)
            self._scores[step, site] = score_role(self._role, rows, store.site(site), store.labels)
        return self._scores[step, site]


def find_role_onsets(
    replay: Replay,
    role: Role,
    *,
    site: str | None = None,
    head: str | None = None,
    announce: Callable[[str], None] = lambda line: None,
) -> RoleOnsets:
    """Find the steps at which heads took up a role that they play at the last known step.

    The known steps are those whose maps the run has stored; of a run without maps, the state before training and the
    last checkpoint. A head's onset lies between the last known step at which it does not play the role
    (`transformer.maps.head_roles.score_role`) and the next one. Between the two, the run is trained again to the middle
    and mapped there, and the half in which the head changes is searched: at most ceil(log2(distance)) maps, and about
    as many steps as lie between the two. If a head changes more than once between two known steps, the result is one of
    its changes to the role.

    Args:
        replay: The run.
        role: The role.
        site: Only heads of this attention module.
        head: Only the head LAYER.HEAD of each module.
        announce: A function that is told of each search and probe.

    Raises:
        UserError: If the model has no such module or head, or no head plays the role at the last known step.
    """
    sites = [one for one in replay.components.model.sites if site in (None, one.name)]
    if not sites:
        names = ", ".join(one.name for one in replay.components.model.sites)
        raise UserError(f"--site={site} is no attention module of this model: it has {names or 'none'}")
    layer_and_head = None if head is None else parse_head(head, sites)
    with tempfile.TemporaryDirectory() as folder:
        search = _Search(replay, role, Path(folder), announce)
        last = search.known.steps[-1]
        searched_heads = [
            Head(one.name, layer, number)
            for one in sites
            for layer, layer_name in enumerate(one.layers)
            for number, head_name in enumerate(one.heads)
            if layer_and_head in (None, (str(layer_name), str(head_name)))
        ]
        playing = [one for one in searched_heads if search.known.plays(one, last)]
        if not playing:
            best = max(searched_heads, key=lambda one: _finite(search.known.score(one, last)))
            roles = ", ".join(name_role(other_role) for other_role in search.known.roles(sites, last))
            raise UserError(
                f"no {'head' if head is None else f'head {head}'} plays the role {role.value} at step {last}, the last "
                f"one that is known; {describe_head(best, replay)} comes nearest, with a score of "
                f"{search.known.score(best, last):.2f}; roles that heads play there: {roles or 'none'}"
            )
        return search.run(playing)


def _finite(score: float) -> float:
    return score if score == score else -1.0


class _Search:
    """The search for the onsets of one role."""

    def __init__(self, replay: Replay, role: Role, folder: Path, announce: Callable[[str], None]):
        self.known = _KnownScores(role)
        self._replay, self._role, self._folder, self._announce = replay, role, folder, announce
        self._probe: Probe | None = None
        # The state at the start of the last bracket, and the last one that was found to be before an onset.
        self._base: StartingPoint | None = None
        self._start: StartingPoint | None = None
        self._num_steps = self._num_probes = 0
        self._stored: MapStore | None = None
        if (replay.directory.maps_dir / "zarr.json").exists():
            self._stored = MapStore.open_existing(replay.directory.maps_dir)
            for step in self._stored.steps:
                if step <= replay.last_step:
                    self.known.add(step, self._stored)
        if not self.known.steps:
            for step in (replay.first_step, max(replay.steps, default=replay.last_step)):
                self._map(step)

    def run(self, heads: Sequence[Head]) -> RoleOnsets:
        """Search the onset of each head, those between earlier known steps first."""
        brackets: dict[Head, tuple[int, int]] = {}
        notes = []
        for head in heads:
            steps = self.known.steps
            last_without = next((step for step in reversed(steps) if not self.known.plays(head, step)), None)
            if last_without is None:
                notes.append(
                    f"{describe_head(head, self._replay)} plays the role {self._role.value} since step {steps[0]}, the "
                    "first one that is known"
                )
                continue
            brackets[head] = (last_without, next(step for step in steps if step > last_without))
        onsets = [self._bisect(head, brackets[head]) for head in sorted(brackets, key=brackets.__getitem__)]
        num_steps = self._num_steps
        comparisons = [
            comparison for bracket in sorted(set(brackets.values())) for comparison in self._verify(bracket[1])
        ]
        verdict = describe_comparisons(comparisons, self._replay.directory)
        return RoleOnsets(tuple(sorted(onsets, key=lambda onset: onset.step)), tuple(notes), num_steps, verdict)

    def _bisect(self, head: Head, bracket: tuple[int, int]) -> RoleOnset:
        low, high = bracket
        probes = self._num_probes
        self._announce(f"{describe_head(head, self._replay)}: between steps {low} and {high}")
        if high - low > 1 and (self._base is None or self._base.step != low):
            self._base = self._state_at(low, low)
        while high - low > 1:
            # What the search of another head has mapped costs nothing.
            inside = [step for step in self.known.steps if low < step < high]
            middle = min(inside, key=lambda step: abs(2 * step - low - high)) if inside else (low + high) // 2
            mapped = None if inside else self._map(middle, low)
            plays = self.known.plays(head, middle)
            score = self.known.score(head, middle)
            self._announce(f"  step {middle}: {'yes' if plays else 'no'} (score {score:.3f})")
            if not plays and mapped is not None:
                self._start = mapped
            low, high = (low, middle) if plays else (middle, high)
        return RoleOnset(
            head,
            self._role,
            high,
            self.known.score(head, low),
            self.known.score(head, high),
            bracket,
            self._num_probes - probes,
        )

    def _map(self, step: int, low: int = 0) -> StartingPoint:
        """Map the probe at a step, and return its state; that of `low` is kept to start from again."""
        state = self._state_at(step, low)
        self._probe = self._probe or self._replay.compile_probe()
        store = store_probe(self._replay, self._probe, state.state, step, self._folder / str(step))
        self._num_probes += 1
        self.known.add(step, store)
        return state

    def _state_at(self, step: int, low: int) -> StartingPoint:
        """Return the state of a step, trained on from the nearest checkpoint or kept state; keep that of `low`."""
        starts = [start for start in (self._base, self._start) if start is not None and start.step <= step]
        saved = max((saved for saved in self._replay.steps if saved <= step), default=self._replay.first_step)
        nearest = max(starts, key=lambda start: start.step, default=None)
        if nearest is None or nearest.step < saved:
            nearest = self._replay.start_before(step)
        start = StartingPoint(nearest.step, copy_state(nearest.state), nearest.window)
        low = max(low, start.step)
        replayed = self._replay.train_on(start, step, {low})
        self._num_steps += step - start.step
        self._start = StartingPoint(low, replayed.states[low])
        return StartingPoint(step, replayed.state)

    def _verify(self, step: int) -> list[Comparison]:
        """Compare the maps of a step that the run stored with those of the replay."""
        if self._stored is None or step not in self._stored.steps:
            return []
        state = self._state_at(step, step)
        self._probe = self._probe or self._replay.compile_probe()
        store = store_probe(self._replay, self._probe, state.state, step, self._folder / f"stored-{step}")
        return compare_stored_maps(self._replay, store, step)


def describe_head(head: Head, replay: Replay) -> str:
    """Describe a head as the report does: "head 1.0 of decoder/self"."""
    names: Mapping[str, Site] = {site.name: site for site in replay.components.model.sites}
    site = names[head.site]
    return f"head {site.layers[head.layer]}.{site.heads[head.head]} of {head.site}"
