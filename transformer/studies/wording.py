"""A study in words: the reason of each verdict, warnings, and the summary at the top of its page."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from transformer.studies.cells import Cell, in_words
from transformer.studies.choice import DIVERGED, DONE, FAILED, Study, beats, best
from transformer.studies.comparisons import LEAST_FOR_A_VERDICT, Comparison, Power
from transformer.studies.statistics import SIGNIFICANCE, Interval

ENOUGH_SEEDS = 5
_NAMED = 4  # runs in one warning, before the rest are only counted
_ENDED = (DONE, DIVERGED, FAILED)


def rounded(value: float, error: float | None = None) -> str:
    """A number to the second digit of its error, or with three digits of its own where there is none.

    Examples: (1.23456, 0.031) -> "1.235"; (0.000123456, None) -> "0.000123".
    """
    if not error or not math.isfinite(error):
        return f"{value:.3g}"
    places = 1 - math.floor(math.log10(error))
    if places > 6:
        return f"{value:.3g}"
    return f"{round(value, max(0, places)) + 0.0:.{max(0, places)}f}"  # + 0.0: no "-0.00"


def share(count: int, n: int, interval: Interval) -> str:
    """A proportion with its interval, as "2 of 5 (95 % interval 12 to 77 %)"."""
    return f"{count} of {n} (95 % interval {100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def _between(interval: Interval) -> str:
    half = (interval.high - interval.low) / 2
    return f"95 % interval {rounded(interval.low, half)} to {rounded(interval.high, half)}"


def _probability(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _corrected(pair: Comparison) -> str:
    assert pair.p_holm is not None
    after = f" after Holm's correction over {pair.family} comparisons" if pair.family > 1 else ""
    return _probability(pair.p_holm) + after


def _listed(words: Iterable[Any]) -> str:
    *most, last = [str(word) for word in words]
    return f"{', '.join(most)} and {last}" if most else last


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {_listed(seeds)}"


def _on(task: str | None) -> str:
    return f" on {task}" if task else ""


# --- The verdicts


def reason(study: Study, pair: Comparison) -> str:
    """Why a comparison has its verdict, in one sentence."""
    test = pair.test
    if test is None or pair.p_holm is None:
        told = _lost(study, pair.arm, pair.task) or _lost(study, study.spec.reference, pair.task)
        lost = f": {told}" if told else ""
        return f"{pair.n} paired seed{'s' if pair.n != 1 else ''}, and no verdict is given under three{lost}."
    if test.deviation == 0:
        size = rounded(test.mean) if test.mean else "0"
        tail = "every seed says the same, and p counts as 0" if test.mean else "the arms are alike"
        return f"All {pair.n} paired differences are {size}: {tail}{_survivors(study, pair)}."
    told = f"The mean difference is {_signed(test.mean, test.interval)} ({_between(test.interval)}), {_corrected(pair)}"
    if pair.verdict != "no difference seen":
        return f"{told}, over {pair.n} paired seeds{_survivors(study, pair)}."
    if test.p < SIGNIFICANCE:
        return f"{told}: alone it would count as seen ({_probability(test.p)}), among {pair.family} it does not."
    return f"{told}, over {pair.n} paired seeds: the interval holds 0{_survivors(study, pair)}."


def _signed(mean: float, interval: Interval) -> str:
    text = rounded(mean, (interval.high - interval.low) / 2)
    return text if text.startswith("-") else f"+{text}"


def _survivors(study: Study, pair: Comparison) -> str:
    """The seeds of a comparison that diverged, and so do not count in it."""
    lost = [
        f"{arm} diverged with {_seeds(seeds)}"
        for arm in (pair.arm, study.spec.reference)
        if (seeds := _seeds_in(study, arm, pair.task, DIVERGED))
    ]
    return f"; only seeds that both finished count, and {_listed(lost)}" if lost else ""


def _seeds_in(study: Study, arm: str, task: str | None, state: str) -> list[int]:
    runs = [cell for name in _tasks(study, task) for cell in study.chosen_runs(arm, name)]
    return [seed for seed in study.spec.seeds if any(cell.seed == seed and cell.state == state for cell in runs)]


def _tasks(study: Study, task: str | None) -> Iterable[str]:
    return study.spec.tasks if task is None else (task,)


def _lost(study: Study, arm: str, task: str | None) -> str:
    """Which seeds of an arm have no value at the chosen tuned values, and why; empty where none is lost."""
    reasons: dict[str, list[int]] = {}
    for seed in study.spec.seeds:
        runs = [
            next((cell for cell in study.chosen_runs(arm, name) if cell.seed == seed), None)
            for name in _tasks(study, task)
        ]
        words = [word for cell in runs if (word := _trouble(study, cell))]
        if words:
            reasons.setdefault(words[0], []).append(seed)
    return _listed(f"{arm} {word} with {_seeds(seeds)}" for word, seeds in reasons.items()) if reasons else ""


def _trouble(study: Study, cell: Cell | None) -> str:
    match cell and cell.state:
        case "diverged" | "failed" as ended:
            return ended
        case "done":
            return "" if cell and cell.reported is not None else f"reports no {study.spec.reported}"
        case _:
            return "has not finished"


# --- The warnings


def warnings(study: Study) -> list[str]:
    """Warnings for the reader, one line each."""
    return [
        *_unfinished(study),
        *_failed(study),
        *_too_few(study),
        *_unpaired(study),
        *_target_missed(study),
        *_at_the_edge(study),
        *_chosen_on_what_is_reported(study),
    ]


def _too_few(study: Study) -> Iterator[str]:
    count = len(study.spec.seeds)
    named = f"{count} seed{'s' if count > 1 else ''} only"
    if count < LEAST_FOR_A_VERDICT:
        yield f"{named}: no verdict is given under three, and {ENOUGH_SEEDS} are the default."
    elif count < ENOUGH_SEEDS:
        yield f"{named}: one odd run can decide, and only large differences are seen; {ENOUGH_SEEDS} are the default."


def _unfinished(study: Study) -> Iterator[str]:
    spec = study.spec
    missing = [
        in_words(arm, task, seed, tuned)
        for seed in spec.seeds
        for task in spec.tasks
        for arm in spec.arms
        for tuned in spec.combinations()
        if not any(cell.seed == seed and cell.state in _ENDED for cell in study.runs(arm, task, tuned))
    ]
    if missing:
        planned = len(spec.seeds) * len(spec.tasks) * len(spec.arms) * len(list(spec.combinations()))
        yield f"{len(missing)} of {planned} runs have not ended: {_some(missing)}."


def _failed(study: Study) -> Iterator[str]:
    cells = [cell for arm in study.spec.arms for cell in study.runs_of(arm) if cell.state == FAILED]
    if cells:
        failed = [f"{in_words(cell.arm, cell.task, cell.seed, cell.tuned)} ({cell.directory})" for cell in cells]
        yield f"{len(cells)} run{'s' if len(cells) > 1 else ''} failed: {_some(failed)}."


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {rest} more" if rest > 0 else "")


def _unpaired(study: Study) -> Iterator[str]:
    for arm in study.spec.arms:
        if lost := _lost(study, arm, None):
            where = "every comparison" if arm == study.spec.reference else "its comparison"
            yield f"Left out of {where}, at the chosen values: {lost}."


def _target_missed(study: Study) -> Iterator[str]:
    spec = study.spec
    if spec.target is None:
        return
    cells = [cell for arm in spec.arms for task in spec.tasks for cell in study.chosen_runs(arm, task)]
    seen = [value for cell in cells for _, value in cell.curves.get(spec.chosen_by, ()) if math.isfinite(value)]
    never = f"The target {spec.chosen_by}={spec.target:g} is never reached"
    if not seen:
        yield f"{never}: no run measured it."
    elif beats(spec, spec.target, best(spec, seen)):
        yield f"{never}: the best of all is {best(spec, seen):.4g}."


def _at_the_edge(study: Study) -> Iterator[str]:
    """Which arms chose the least or the greatest of three values or more: their best may lie beyond.

    A least value of 0, as of a warm-up or a dropout, has nothing beyond.
    """
    for key, values in study.spec.tuned.items():
        numbers = sorted(value for value in values if isinstance(value, int | float) and not isinstance(value, bool))
        if len(numbers) < 3:
            continue
        for word, end in (("smallest", numbers[0]), ("largest", numbers[-1])):
            arms = [told for arm in study.spec.arms if (told := _that_chose(study, arm, key, end))]
            if end and arms:
                yield f"{_listed(arms)} chose {key}={end}, the {word} tried: the best may lie beyond."


def _that_chose(study: Study, arm: str, key: str, value: float) -> str:
    """The arm, with the tasks on which it chose a value where not on all; empty where on none."""
    tasks = [
        task
        for task in study.spec.tasks
        if any(cell.state == DONE and cell.tuned[key] == value for cell in study.chosen_runs(arm, task))
    ]
    if not tasks:
        return ""
    return arm if len(tasks) == len(study.spec.tasks) else f"{arm} (on {_listed(tasks)})"


def _chosen_on_what_is_reported(study: Study) -> Iterator[str]:
    spec = study.spec
    if spec.chosen_by == spec.reported and len(list(spec.combinations())) > 1:
        yield f"Values were chosen by {spec.reported}, which is also reported: what was chosen looks better than it is."


# --- The summary


def summary(study: Study, pairs: Sequence[Comparison], arms: Sequence[Mapping[str, Any]]) -> list[str]:
    """The answer in sentences: who wins and by how much, what was not seen, and what divergence and cost add.

    `arms` are those of the study's result.
    """
    overall = [pair for pair in pairs if pair.task is None]
    verdicts = {pair.arm: pair.verdict for pair in overall}
    return [
        *_winner(study, verdicts, arms),
        *(_sentence(study, pair) for pair in overall),
        *(
            _sentence(study, pair)
            for pair in pairs
            if pair.task is not None and pair.verdict in ("better", "worse") and pair.verdict != verdicts[pair.arm]
        ),
        *_divergence(study, arms),
        *_to_target(study, arms),
        *_sensitivity(study, arms),
    ]


def _winner(study: Study, verdicts: Mapping[str, str], arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    spec = study.spec
    means = {arm["name"]: arm["mean"] for arm in arms if arm["n"] >= LEAST_FOR_A_VERDICT}
    if len(means) < 2:
        return
    first = min(means, key=lambda name: means[name] if spec.better.value == "lower" else -means[name])
    winner = next(arm for arm in arms if arm["name"] == first)
    told = f"{first} has the best mean {spec.reported}, {_value(winner)}"
    others = [name for name, verdict in verdicts.items() if verdict == "no difference seen"]
    if first != spec.reference:
        if verdicts[first] == "better":
            yield f"{told}, and beats the reference {spec.reference}."
        elif verdicts[first] == "worse":
            # Its mean is of the seeds that it finished, the verdict of those that both did.
            yield f"{told}, over the seeds that it finished; on the seeds of both it is worse than {spec.reference}."
        elif verdicts[first] == "not said":
            yield f"{told}; nothing can be said of it against the reference {spec.reference}."
        else:
            yield f"{told}, but no difference from the reference {spec.reference} was seen."
    elif all(verdict == "worse" for verdict in verdicts.values()):
        yield f"{told}, and beats every other arm."
    else:
        unseen = f"; not seen to differ from it: {_listed(others)}" if others else ""
        yield f"{told}{unseen}."


def _value(arm: Mapping[str, Any]) -> str:
    low, high = arm["interval"]
    return f"{rounded(arm['mean'], (high - low) / 2)} ({_between(Interval(low, high))})"


def _sentence(study: Study, pair: Comparison) -> str:
    where, against, test = _on(pair.task), study.spec.reference, pair.test
    if pair.verdict == "not said" or test is None:
        return f"Nothing is said of {pair.arm} against {against}{where}: {reason(study, pair)}"
    low, high = test.interval
    if pair.verdict == "no difference seen":
        difference = f"{_signed(test.mean, test.interval)} ({_between(test.interval)}, {_corrected(pair)})"
        return (
            f"No difference seen between {pair.arm} and {against}{where} at {pair.n} seeds: {difference}"
            f"{_could_see(pair.power, study.spec.notable, pair.n)}."
        )
    interval = Interval(low, high) if test.mean > 0 else Interval(-high, -low)
    size = f"{rounded(abs(test.mean), (high - low) / 2)} in {study.spec.reported} ({_between(interval)}"
    return (
        f"{pair.arm} is {pair.verdict} than {against}{where} by {size}, {_corrected(pair)}; "
        f"{pair.n} paired seeds){_survivors(study, pair)}."
    )


def _could_see(power: Power | None, notable: float | None, n: int) -> str:
    if power is None or power.detectable is None:
        return ""
    size = notable if notable is not None else power.seeds_for[0][0]
    seeds = dict(power.seeds_for)[size]
    if seeds <= n:
        return f"; a difference of {size:g} would probably have been seen"
    return f"; to see {size:g} you need {seeds} seeds"


def _divergence(study: Study, arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    some = [arm for arm in arms if arm["runs"]["diverged"]]
    if not some:
        return
    told = [
        f"{arm['name']} in {share(runs['diverged'], runs['ended'], Interval(*runs['interval']))}"
        for arm in some
        for runs in (arm["runs"],)
    ]
    none = [arm["name"] for arm in arms if not arm["runs"]["diverged"] and arm["runs"]["ended"]]
    never = f"; never: {_listed(none)}" if none else ""
    yield f"Runs that diverged, over all tuned values: {'; '.join(told)}{never}."


def _to_target(study: Study, arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    spec = study.spec
    timed = [(arm["name"], arm["to_target"]) for arm in arms if arm["to_target"] and arm["to_target"]["of"]]
    if not any(times["reached"] for _, times in timed):
        return
    told = []
    for name, times in timed:
        steps = f"{times['steps']:g}" if times["steps"] is not None else "not by more than half of its runs"
        missed = times["of"] - times["reached"]
        told.append(f"{name} {steps}" + (f" ({missed} of {times['of']} never did)" if missed else ""))
    yield f"Median steps to {spec.chosen_by} {spec.target:g}: {'; '.join(told)}."


def _sensitivity(study: Study, arms: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for key in study.spec.tuned:
        sensitivities = {
            arm["name"]: entry["sensitivity"]
            for arm in arms
            for entry in arm["sensitivity"]
            if entry["key"] == key and entry["sensitivity"] is not None
        }
        if len(sensitivities) > 1:
            order = sorted(sensitivities, key=lambda name: sensitivities[name])
            told = "; ".join(f"{name} {sensitivities[name]:.3g}" for name in order)
            yield f"Sensitivity to {key}, in {study.spec.chosen_by} off the best, mean over the values tried: {told}."
