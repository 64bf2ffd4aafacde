"""Configs: what they refuse, what they say then, and that they come back from JSON as they were."""

import dataclasses
import enum
import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

import pytest

from transformer.attention.attention_spec import Backend
from transformer.config import (
    Config,
    Fraction,
    NonNegativeInt,
    NumLayers,
    PositiveFloat,
    PositiveInt,
    Range,
    Rate,
    RunConfig,
    SplitName,
    TupleLimits,
    UserError,
    close_matches,
    convert_value,
    from_config,
    lookup_by_name,
    name_similarity,
    suggest_nearest,
    to_config,
)
from transformer.overrides import SchemaValue, parse_value


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float
    color: Color = Color.RED


@dataclasses.dataclass(frozen=True)
class Outer:
    count: int
    inner: Inner
    name: str = "plain"
    on: bool = False
    sizes: tuple[int, ...] = (1, 2)
    inners: tuple[Inner, ...] = ()
    limit: float | None = None
    table: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    either: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise UserError(f"count={self.count} is negative")


FULL = {
    "count": 3,
    "inner": {"rate": 0.5, "color": "green"},
    "name": "other",
    "on": True,
    "sizes": [4, 5, 6],
    "inners": [{"rate": 1.0, "color": "red"}],
    "limit": 2.5,
    "table": {"any": [1, {"thing": None}]},
    "either": [3],
}


def test_a_nested_mapping_becomes_frozen_dataclasses() -> None:
    built = from_config(Outer, FULL)
    assert built == Outer(
        count=3,
        inner=Inner(0.5, Color.GREEN),
        name="other",
        on=True,
        sizes=(4, 5, 6),
        inners=(Inner(1.0),),
        limit=2.5,
        table={"any": [1, {"thing": None}]},
        either=(3,),
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        built.count = 4  # type: ignore[misc]


def test_what_is_left_out_has_its_default() -> None:
    assert from_config(Outer, {"count": 0, "inner": {"rate": 1}}) == Outer(0, Inner(1.0))


def test_integers_serve_as_floats_and_become_them() -> None:
    built = from_config(Outer, {"count": 0, "inner": {"rate": 1}, "limit": 2})
    assert (type(built.inner.rate), type(built.limit)) == (float, float)


def test_what_is_already_built_is_taken_as_it_is() -> None:
    built = from_config(Outer, {"count": 1, "inner": Inner(0.5, Color.GREEN), "sizes": (7,), "limit": None})
    assert (built.inner, built.sizes, built.limit) == (Inner(0.5, Color.GREEN), (7,), None)
    assert from_config(Inner, {"rate": 1.0, "color": Color.GREEN}).color is Color.GREEN


def test_to_config_is_the_inverse_and_plain_json() -> None:
    built = from_config(Outer, FULL)
    assert to_config(built) == FULL
    assert from_config(Outer, json.loads(json.dumps(to_config(built)))) == built


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cuont": 3}, r"unknown key config\.cuont: did you mean 'count'\?"),
        ({"zzz": 3}, r"unknown key config\.zzz: known: count, either, inner, inners, .*table"),
        ({7: 3}, r"unknown key config\.7: known: count, either"),
        ({"inner": {"rate": 1.0, "colour": "red"}}, r"unknown key config\.inner\.colour: did you mean 'color'\?"),
        ({"inner": {}}, r"config\.inner\.rate is missing: it has no default"),
        ({"inner": 3}, r"config\.inner=3 is a int; it must be a Inner"),
        ({"inner": {"rate": "fast"}}, r"config\.inner\.rate='fast' is a str; it must be a float"),
        ({"inner": {"rate": True}}, r"config\.inner\.rate=True is a bool; it must be a float"),
        ({"inner": {"rate": None}}, r"config\.inner\.rate=None is a NoneType; it must be a float"),
        (
            {"inner": {"rate": 1.0, "color": "geen"}},
            r"config\.inner\.color='geen' is unknown: did you mean 'green'\?",
        ),
        ({"inner": {"rate": 1.0, "color": "x"}}, r"config\.inner\.color='x' is unknown: known: green, red"),
        ({"inner": {"rate": 1.0, "color": ["red"]}}, r"config\.inner\.color=\['red'\] is a list; .* Color"),
        ({"count": "3"}, r"config\.count='3' is a str; it must be a int"),
        ({"count": 3.0}, r"config\.count=3\.0 is a float; it must be a int"),
        ({"count": True}, r"config\.count=True is a bool; it must be a int"),
        ({"on": 1}, r"config\.on=1 is a int; it must be a bool"),
        ({"name": 1}, r"config\.name=1 is a int; it must be a str"),
        ({"name": "a\nb", "on": "c\nd"}, r"config\.on='c\\nd' is a str"),
        ({"sizes": 3}, r"config\.sizes=3 is a int; it must be a tuple"),
        ({"sizes": "12"}, r"config\.sizes='12' is a str; it must be a tuple"),
        ({"sizes": [1, "2"]}, r"config\.sizes\[1\]='2' is a str; it must be a int"),
        ({"inners": [{"rate": 1.0}, {"rat": 1.0}]}, r"unknown key config\.inners\[1\]\.rat: did you mean 'rate'"),
        ({"limit": "2"}, r"config\.limit='2' is a str; it must be a float"),
        ({"either": ["2"]}, r"config\.either\[0\]='2' is a str; it must be a int"),
        ({"table": [1]}, r"config\.table=\[1\] is a list; it must be a Mapping"),
        ({"count": -1}, r"count=-1 is negative"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_one_line(changes: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        from_config(Outer, {**FULL, **changes})
    assert "\n" not in str(refused.value)


@dataclasses.dataclass(frozen=True)
class Checked:
    rate: float = 0.0
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.rate >= 1:
            raise ValueError(f"rate={self.rate} must be below 1")
        if len(self.sizes) > 1:
            raise ValueError("two sizes do not fit each other")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"rate": 1.5}, "config.model.rate=1.5 must be below 1"),
        ({"sizes": [1, 2]}, "two sizes do not fit each other"),
    ],
)
def test_what_a_dataclass_itself_refuses_is_a_mistake_of_the_values(values: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(says)}$"):
        from_config(Checked, values, "config.model")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UserError, match=r"^config\.model\.count is missing"):
        from_config(Outer, {"inner": {"rate": 1.0}}, "config.model")


def test_a_choice_is_the_entry_of_its_name() -> None:
    table = {"greedy": 1, "beam": 2}
    assert lookup_by_name("beam", table, "config.decoder") == 2
    with pytest.raises(
        UserError, match=r"^config\.decoder='bean' is unknown: did you mean 'beam'\? known: beam, greedy$"
    ):
        lookup_by_name("bean", table, "config.decoder")


def test_the_nearest_word_or_all_of_them() -> None:
    assert suggest_nearest("warmpu", ["warmup", "steps"]) == "did you mean 'warmup'?"
    assert suggest_nearest("1.0", ["0", "1"]) == "did you mean '1'?"
    assert suggest_nearest("-01", ["0", "1", "-1"]) == "did you mean '-1'?"
    assert suggest_nearest("q", ["warmup", "steps"]) == "known: steps, warmup"
    assert close_matches("prenorm", ["deepnorm", "post", "pre", "q"]) == ["pre", "deepnorm"]
    assert name_similarity("warmup", "warmup") == 1


RUN: dict[str, Any] = {"name": "a", "task": {}, "model": {"family": "x"}, "optimizer": {}, "steps": 10}


def test_a_run_needs_its_sections_and_gives_the_rest_defaults() -> None:
    run = from_config(RunConfig, RUN)
    assert (run.model, run.num_microbatches, run.precision) == ({"family": "x"}, 1, {})
    assert from_config(RunConfig, to_config(run)) == run
    for name in RUN:
        with pytest.raises(UserError, match=rf"config\.{name} is missing"):
            from_config(RunConfig, {key: value for key, value in RUN.items() if key != name})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 0}, r"config\.steps=0 must be at least 1"),
        ({"num_microbatches": 0}, r"config\.num_microbatches=0 must be at least 1"),
        ({"log_every": 0}, r"config\.log_every=0 must be at least 1"),
        ({"xla_flags": "xla_a=1"}, r"config\.xla_flags has 'xla_a=1', which is not a flag of the form --name=value"),
        ({"libtpu_init_args": "--a=1 -b=2"}, r"config\.libtpu_init_args has '-b=2', which is not a flag"),
        ({"keep_checkpoints": 0}, r"config\.keep_checkpoints=0 must be at least 1"),
        ({"eval_every": -1}, r"config\.eval_every=-1 must be at least 0"),
        ({"maps_every": -1}, r"config\.maps_every=-1 must be at least 0"),
        ({"checkpoint_every": -50}, r"config\.checkpoint_every=-50 must be at least 0"),
        ({"log_every": 50, "checkpoint_every": 75}, r"checkpoint_every=75 must be a multiple of config\.log_every=50"),
        ({"eval_evry": 5}, r"unknown key config\.eval_evry: did you mean 'eval_every'"),
    ],
    ids=str,
)
def test_an_impossible_run_is_refused_in_one_line(changes: dict, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        from_config(RunConfig, {**RUN, **changes})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "flash",
            "flash attention is cudnn on NVIDIA GPUs and splash on TPUs, and auto chooses them there; known: auto, ",
        ),
        ("FlashAttention2", "flash attention is cudnn on NVIDIA GPUs and splash on TPUs"),
        ("sdpa", "auto chooses cudnn on NVIDIA GPUs and splash on TPUs where they are exact; known: auto, "),
        ("eager", "the reference with all weights in memory is einsum; known: auto, "),
        ("spalsh", "did you mean 'splash'? known: splash, "),
    ],
)
def test_what_other_libraries_call_a_backend_is_answered_with_ours(name: str, says: str) -> None:
    message = re.escape(f"config.model.backend={name!r} is unknown: {says}")
    with pytest.raises(UserError, match=f"^{message}"):
        convert_value(Backend, name, "config.model.backend")
    with pytest.raises(UserError, match=f"^{message}"):
        parse_value(SchemaValue(Backend), name, "config.model.backend")


@pytest.mark.parametrize(
    ("changes", "would_do"),
    [
        ({"log_every": 50, "checkpoint_every": 75}, {"log_every": 25}),
        ({"log_every": 50, "checkpoint_every": 7}, {"log_every": 7}),
        ({"log_every": 2**31 - 2, "checkpoint_every": 2**31 - 1}, {"log_every": 1}),
        ({"checkpoint_every": 0, "permanent_checkpoint_every": 15}, {"permanent_checkpoint_every": 20}),
        (
            {"log_every": 50, "checkpoint_every": 20, "permanent_checkpoint_every": 30},
            {"log_every": 20, "permanent_checkpoint_every": 40},
        ),
    ],
)
def test_all_intervals_that_do_not_fit_are_told_at_once_with_values_that_do(changes: dict, would_do: dict) -> None:
    values = {**RUN, "steps": 10, **changes}
    with pytest.raises(UserError) as refused:
        from_config(RunConfig, values)
    suggestions = re.findall(r"config\.(\w+)=(\d+)", str(refused.value).rpartition(": ")[2])
    assert {name: int(value) for name, value in suggestions} == would_do
    from_config(RunConfig, {**values, **would_do})


def test_never_means_only_at_the_end() -> None:
    run = from_config(RunConfig, {**RUN, "eval_every": 0, "maps_every": 0, "checkpoint_every": 0})
    assert (run.eval_every, run.maps_every, run.checkpoint_every) == (0, 0, 0)
    assert run.num_probe_steps == 1


@pytest.mark.parametrize(("steps", "maps_every", "count"), [(10, 5, 3), (10, 4, 4), (3, 5, 2)])
def test_maps_are_of_the_start_their_cadence_and_the_end(steps: int, maps_every: int, count: int) -> None:
    run = from_config(RunConfig, {**RUN, "steps": steps, "maps_every": maps_every})
    assert run.num_probe_steps == count


@dataclasses.dataclass(frozen=True)
class Bounded(Config, path="config"):
    """Values with ranges of their own, and with none."""

    count: NonNegativeInt = 1
    parts: tuple[PositiveInt, ...] = ()
    share: Fraction | None = None
    rate: Rate = 0.0
    scale: PositiveFloat = 1.0
    pair: Annotated[int, Range(2, note=": one is none")] = 2
    sizes: Annotated[tuple[PositiveInt, ...], TupleLimits(min_length=1, distinct=True)] = (1,)
    split: SplitName = "test"
    whole: int = 0
    number: float = 0.0
    text: str = ""

    def _check(self) -> None:
        if self.pair == self.count:
            raise UserError(f"config.pair={self.pair} and config.count={self.count} must differ")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"count": -1}, "config.count=-1 must be at least 0"),
        ({"count": 2**31}, "config.count=2147483648 must be at most 2147483647"),
        ({"parts": [3, 0]}, "config.parts[1]=0 must be at least 1"),
        ({"share": 1.5}, "config.share=1.5 must be at most 1"),
        ({"rate": 1.0}, "config.rate=1.0 must be at least 0 and below 1"),
        ({"rate": -0.5}, "config.rate=-0.5 must be at least 0 and below 1"),
        ({"scale": 0.0}, "config.scale=0.0 must be above 0"),
        ({"pair": 1}, "config.pair=1 must be at least 2: one is none"),
        ({"sizes": ()}, "config.sizes=() must hold at least a value"),
        ({"sizes": (3, 3)}, "config.sizes=(3, 3) must hold different values"),
        ({"sizes": (3, 0)}, "config.sizes[1]=0 must be at least 1"),
        ({"split": ""}, "config.split='' must be the name of a split"),
        ({"count": 2}, "config.pair=2 and config.count=2 must differ"),
        ({"whole": 10**20}, "must be at most 2147483647"),
        ({"whole": -(2**31) - 1}, "must be at least -2147483648"),
        ({"number": math.nan}, "config.number=nan must be a finite number"),
        ({"number": -math.inf}, "must be a finite number"),
        ({"number": 10**400}, "must be a finite number"),
        ({"text": "a\0b"}, "must be text of UTF-8 without null characters"),
        ({"text": "\udcff"}, "must be text of UTF-8 without null characters"),
        ({"whole": True}, "must be a int"),
    ],
)
def test_a_number_out_of_its_range_is_refused_by_its_key(values: dict[str, Any], says: str) -> None:
    for construct in (lambda: from_config(Bounded, values), lambda: Bounded(**values)):
        with pytest.raises(UserError, match=re.escape(says)):
            construct()


def test_a_path_is_that_of_the_reader_or_of_the_section() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(Bounded):
        share: Fraction = 0.5

        def _check(self) -> None:
            super()._check()
            if self.share == self.rate:
                raise UserError("config.share is config.rate")

    with pytest.raises(UserError, match=r"^config\.parameter_averages\.mean\.count=-1 must"):
        from_config(Own, {"count": -1}, "config.parameter_averages.mean")
    with pytest.raises(UserError, match=r"^config\.share=2.0 must be at most 1$"):
        Own(share=2.0)
    with pytest.raises(UserError, match="must differ"):
        Own(count=2)
    with pytest.raises(UserError, match=r"is config\.rate"):
        Own(rate=0.5)


def test_numbers_within_their_ranges_are_taken() -> None:
    values = {"count": 0, "parts": [1], "share": 1, "whole": -(2**31), "number": 10**20, "text": "ä\n"}
    assert from_config(Bounded, values) == Bounded(0, (1,), 1.0, whole=-(2**31), number=1e20, text="ä\n")


@pytest.mark.parametrize("name", ["", " ", "two\nlines", "\x1b[31mred"])
def test_the_name_of_a_run_is_a_line_of_text(name: str) -> None:
    values = {"name": name, "task": {}, "model": {}, "optimizer": {}, "steps": 3}
    with pytest.raises(UserError, match=r"config\.name='.*' must be one line of printable text"):
        from_config(RunConfig, values)


@pytest.mark.parametrize("layers", [-1, 10**9])
def test_layers_are_no_more_than_can_be_written_down(layers: int) -> None:
    @dataclasses.dataclass(frozen=True)
    class Model:
        layers: NumLayers = 1

    with pytest.raises(UserError, match=rf"config\.layers={layers} must be at "):
        from_config(Model, {"layers": layers})
