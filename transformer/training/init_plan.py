"""Plan the initialization of a new run's parameters from those of another: rules over paths, decided on shapes.

A rule is one line of text, about the parameters of the new run (targets) and those of the other run (sources):

    classes/* = fresh           matching targets keep their own initial values
    decoder/* = layers/*        matching targets take the values of the sources of that name
    resize embedding/table      a size may differ along one axis: the common rows, from row 0 on, are taken

A `*` matches any characters, including "/"; if there are several, the first match as few as possible. On the right each
`*` is replaced by the match of the one on the left. The first rule with `=` that matches a target decides its source;
without one it is the source of the same path. Rules with `resize` only allow a resize, and all of them apply.

Where classes or tokens of both runs have other names, or another order, entries are taken by name and not by number.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from transformer.config import Config, UserError, suggest_nearest
from transformer.layers.lora import has_lora, lora_paths
from transformer.training.entry_names import NameMatch, list_names

FRESH = "fresh"

_KEY = "config.initialize_from.rules"
_FORMS = "'TARGET = SOURCE', 'TARGET = fresh' or 'resize TARGET'"


@dataclasses.dataclass(frozen=True)
class InitializeFromConfig(Config, path="config.initialize_from"):
    """The source of initial parameters.

    Every parameter takes the values of the source's parameter of the same path, unless `rules` say otherwise.

    Attributes:
        run: A run directory, or a folder in Hugging Face format with config.json and model.safetensors. "" is none.
        step: The step of the run's checkpoint. None is the latest.
        average: The name of an average of the run, whose parameters are taken where it has them. "" takes the raw ones.
        copy_tokenizer: Whether the new run takes over the tokenizer of the source.
        rules: Rules such as "classes/* = fresh", "decoder/* = layers/*" or "resize embedding/table"
            (transformer.training.init_plan).
    """

    run: str = ""
    step: int | None = None
    average: str = ""
    copy_tokenizer: bool = False
    rules: tuple[str, ...] = ()

    def _check(self) -> None:
        for rule in self.rules:
            parse_init_rule(rule)


@dataclasses.dataclass(frozen=True)
class InitRule:
    """A rule.

    Attributes:
        text: The rule as written.
        target: The pattern of its targets.
        source: The pattern of their sources; "" for a resize.
    """

    text: str
    target: str
    source: str = ""

    @property
    def is_resize(self) -> bool:
        """Whether the rule only allows a resize."""
        return not self.source

    def matches(self, path: str) -> bool:
        """Whether this is the path of one of its targets."""
        return match_wildcards(self.target, path) is not None

    def source_of(self, path: str) -> str:
        """Return the path of a target's source: each `*` of the source's pattern stands for that of the target's."""
        if "*" not in self.source:
            return self.source
        first, *pieces = self.source.split("*")
        stars = match_wildcards(self.target, path) or ()
        return first + "".join(star + piece for star, piece in zip(stars, pieces, strict=True))


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
    """The shape and type of an array, and the logical names of its axes if they are known."""

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...] = ()


@dataclasses.dataclass(frozen=True)
class MatchedSource:
    """The source that a target takes its values from.

    Attributes:
        source_path: The path of the source.
        array_info: Its shape and type.
        resized_axis: The axis along which the sizes differ, if any.
        named_axis: The axis along which entries are taken by name, if any.
        entries: For every entry along `named_axis`, the source's; -1 for one that keeps its initial value.
    """

    source_path: str
    array_info: ArrayInfo
    resized_axis: int | None = None
    named_axis: int | None = None
    entries: tuple[int, ...] = ()

    @property
    def is_partial(self) -> bool:
        """Whether a part of the source is taken, or its entries in another order."""
        return self.resized_axis is not None or self.named_axis is not None

    def taken_shape(self, target: ArrayInfo) -> tuple[int, ...]:
        """Return the shape of the part of the target that is taken: entries by name, or what both have in common."""
        shape = list(map(min, target.shape, self.array_info.shape))
        if self.named_axis is not None:
            shape[self.named_axis] = sum(entry >= 0 for entry in self.entries)
        return tuple(shape)


@dataclasses.dataclass(frozen=True)
class InitPlan:
    """Where the values of every target come from.

    Attributes:
        targets: The targets by path.
        matched_sources: The source of each target that has one.
        newly_initialized: The rule that left each other target fresh.
        merged_paths: The targets whose source has a LoRA update that the new run has no parameters for: it is merged.
        unused_paths: The sources that are neither taken nor merged.
        names: The match of the entries' names by logical axis, where they differ.
    """

    targets: Mapping[str, ArrayInfo]
    matched_sources: Mapping[str, MatchedSource]
    newly_initialized: Mapping[str, str]
    merged_paths: tuple[str, ...]
    unused_paths: tuple[str, ...]
    names: Mapping[str, NameMatch] = dataclasses.field(default_factory=dict)

    @property
    def resized_paths(self) -> tuple[str, ...]:
        """The targets whose size differs from that of their source, of which they take a part."""
        return tuple(path for path, matched in self.matched_sources.items() if matched.resized_axis is not None)

    @property
    def partial_paths(self) -> tuple[str, ...]:
        """The targets that take a part of their source, or its entries in another order."""
        return tuple(path for path, matched in self.matched_sources.items() if matched.is_partial)

    def paths_matched_along(self, axis: str) -> tuple[str, ...]:
        """Return the targets whose entries along a logical axis are taken by name."""
        return tuple(
            path
            for path, matched in self.matched_sources.items()
            if matched.named_axis is not None and self.targets[path].axes[matched.named_axis] == axis
        )

    @property
    def cast_paths(self) -> tuple[str, ...]:
        """The targets whose floating-point type differs from that of their source."""
        return tuple(
            path
            for path, matched in self.matched_sources.items()
            if matched.array_info.dtype != self.targets[path].dtype
        )


def parse_init_rule(text: str) -> InitRule:
    """Parse a rule.

    Raises:
        UserError: If the text is not a rule.
    """
    rule_text = f"{_KEY}: {text!r}"
    resize = re.fullmatch(r"\s*resize\s+(\S+)\s*", text)
    if resize and "=" not in text:
        return InitRule(text, resize[1])
    sides = re.fullmatch(r"\s*([^\s=]+)\s*=\s*([^\s=]+)\s*", text)
    if sides is None:
        raise UserError(f"{rule_text} is no rule; a rule is {_FORMS}")
    target, source = sides.groups()
    if source.count("*") not in (0, target.count("*")):
        raise UserError(
            f"{rule_text} has {source.count('*')} * on the right and {target.count('*')} on the left: each * on the "
            "right stands for one on the left, so the right has as many, or none"
        )
    return InitRule(text, target, source)


def match_wildcards(pattern: str, path: str) -> tuple[str, ...] | None:
    """Return the part of a path that each `*` of a pattern matches; None if the pattern does not match."""
    match = _expression(pattern).fullmatch(path)
    return None if match is None else match.groups()


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def plan_parameters(
    targets: Mapping[str, ArrayInfo],
    sources: Mapping[str, ArrayInfo],
    rules: Sequence[InitRule],
    names: Mapping[str, NameMatch] | None = None,
) -> InitPlan:
    """Decide where the values of every target come from, by paths, shapes, types and names alone.

    Args:
        targets: The parameters of the new run by path.
        sources: The arrays of the source by path.
        rules: The rules.
        names: The match of the entries' names by logical axis, where they differ.

    Raises:
        UserError: If a rule has no effect, or a source is missing or has another shape or type; the message names the
            target, both shapes and a rule that would resolve it.
    """
    origins, fresh = _origins(targets, rules)
    _check_resize_rules(targets, fresh, rules)
    _check_sources(targets, sources, origins)
    names = names or {}
    matched_sources: dict[str, MatchedSource] = {}
    for path, (source, _) in origins.items():
        matched = _match_source(path, targets[path], source, sources[source], rules)
        matched_sources[path] = _match_entries(path, targets[path], matched, names)
    merged = tuple(
        path
        for path, matched in matched_sources.items()
        if has_lora(matched.source_path, sources) and lora_paths(path)[0] not in matched_sources
    )
    used = {matched.source_path for matched in matched_sources.values()}
    used.update(*(lora_paths(matched_sources[path].source_path) for path in merged))
    unused = tuple(source for source in sources if source not in used)
    return InitPlan(targets, matched_sources, fresh, merged, unused, names)


def _match_entries(
    path: str, target: ArrayInfo, matched: MatchedSource, names: Mapping[str, NameMatch]
) -> MatchedSource:
    """Take the entries of an axis by name where those of the source are others, or stand in another order."""
    for axis, logical in enumerate(target.axes):
        match = names.get(logical or "")
        if match is None or matched.resized_axis not in (None, axis):
            continue
        size, stored = target.shape[axis], matched.array_info.shape[axis]
        if size < len(match.target_names) or stored < len(match.source_names):
            continue  # an axis of other entries, such as those of a second vocabulary
        if match.num_matched == 0:
            raise UserError(
                f"config.initialize_from: the parameter {path} {target.shape} cannot take {matched.source_path!r} in "
                f"the run: the {match.describe_names()}; leave it fresh with the rule {f'{path} = {FRESH}'!r}"
            )
        # Rows behind the names, such as those that fill a table up, stand for nothing that both have.
        entries = (*match.entries, *(-1,) * (size - len(match.entries)))
        return dataclasses.replace(matched, named_axis=axis, entries=entries)
    return matched


def _origins(
    targets: Mapping[str, ArrayInfo], rules: Sequence[InitRule]
) -> tuple[dict[str, tuple[str, InitRule | None]], dict[str, str]]:
    """Return each target's source with the rule that names it, and the rules that leave other targets fresh."""
    origins: dict[str, tuple[str, InitRule | None]] = {}
    fresh: dict[str, str] = {}
    deciding = [rule for rule in rules if not rule.is_resize]
    for path in targets:
        rule = next((rule for rule in deciding if rule.matches(path)), None)
        if rule is None:
            origins[path] = path, None
        elif rule.source == FRESH:
            fresh[path] = rule.text
        else:
            origins[path] = rule.source_of(path), rule
    used = {*fresh.values(), *(rule.text for _, rule in origins.values() if rule is not None)}
    for number, rule in enumerate(deciding):
        if rule.text not in used or rule in deciding[:number]:
            raise UserError(f"{_KEY}: {rule.text!r} {_why_idle(rule, targets)}")
    return origins, fresh


def _why_idle(rule: InitRule, targets: Mapping[str, ArrayInfo]) -> str:
    if any(map(rule.matches, targets)):
        return "decides nothing: the rules before it match all that it matches; put it before them, or leave it out"
    return f"matches no parameter of this run; {suggest_nearest(rule.target, targets)}"


def _check_resize_rules(targets: Mapping[str, ArrayInfo], fresh: Mapping[str, str], rules: Sequence[InitRule]) -> None:
    for rule in rules:
        matched = list(filter(rule.matches, targets))
        if not rule.is_resize or any(path not in fresh for path in matched):
            continue
        if matched:
            raise UserError(f"{_KEY}: {rule.text!r} resizes what {fresh[matched[0]]!r} leaves fresh: drop one of them")
        raise UserError(f"{_KEY}: {rule.text!r} {_why_idle(rule, targets)}")


def _check_sources(
    targets: Mapping[str, ArrayInfo],
    sources: Mapping[str, ArrayInfo],
    origins: Mapping[str, tuple[str, InitRule | None]],
) -> None:
    missing = [path for path, (source, _) in origins.items() if source not in sources]
    if not missing:
        return
    path = missing[0]
    source, rule = origins[path]
    remainder = f" (and none for {len(missing) - 1} more: {list_names(missing[1:], limit=4)})" if missing[1:] else ""
    by_rule = "" if rule is None else f" (by the rule {rule.text!r})"
    raise UserError(
        f"config.initialize_from: the run has no {source!r}{by_rule} for the parameter {path} "
        f"{targets[path].shape}{remainder}; {suggest_nearest(source, sources)}; say where it comes from with the rule "
        f"'{path} = SOURCE', or leave it fresh with {f'{_together(missing, targets)} = {FRESH}'!r}"
    )


def _together(missing: Sequence[str], targets: Mapping[str, ArrayInfo]) -> str:
    """Return a pattern that matches just the missing paths, such as "classes/*", if one part of them does."""
    first, *inner = missing[0].split("/")[:-1] or [missing[0]]
    for pattern in (f"{first}/*", *(f"*/{part}/*" for part in reversed(inner))):
        matched = {path for path in targets if match_wildcards(pattern, path) is not None}
        if len(matched) > 1 and matched <= set(missing):
            return pattern
    return missing[0]


def _match_source(
    path: str, target: ArrayInfo, source: str, leaf: ArrayInfo, rules: Sequence[InitRule]
) -> MatchedSource:
    target_text = f"config.initialize_from: the parameter {path} {target.shape} of {target.dtype}"
    stored = f"{source!r} in the run, {leaf.shape} of {leaf.dtype}"
    instead = f"leave it fresh with the rule {f'{path} = {FRESH}'!r}"
    if target.dtype != leaf.dtype and not (_is_float(target.dtype) and _is_float(leaf.dtype)):
        raise UserError(f"{target_text} cannot take {stored}: only floating-point numbers are cast; {instead}")
    if target.shape == leaf.shape:
        return MatchedSource(source, leaf)
    if len(target.shape) != len(leaf.shape):
        raise UserError(f"{target_text} has another number of axes than {stored}; {instead}")
    differing = [axis for axis, sizes in enumerate(zip(target.shape, leaf.shape, strict=True)) if len(set(sizes)) > 1]
    axis = differing[0]
    if "layers" in [target.axes[dimension] for dimension in differing if target.axes]:
        raise UserError(
            f"{target_text} has another number of layers than {stored}: layers are never resized; give both models one "
            f"depth, or {instead}"
        )
    if len(differing) > 1:
        raise UserError(
            f"{target_text} differs along {len(differing)} axes from {stored}: one can be resized; {instead}"
        )
    if not any(rule.is_resize and rule.matches(path) for rule in rules):
        raise UserError(
            f"{target_text} is of another size than {stored}; take what they have in common with the rule "
            f"{f'resize {path}'!r}, or {instead}"
        )
    return MatchedSource(source, leaf, axis)


def _is_float(dtype: str) -> bool:
    try:
        return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:  # a key, or a Python number
        return False
