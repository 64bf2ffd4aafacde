"""Overrides against a config's own schema: what chooses the keys, and what studies set that no file says."""

import copy
import dataclasses
import typing

import pytest

from tests.studies.tiny import BASE
from transformer.config import UserError, flatten_config
from transformer.models.published_sizes import PUBLISHED_SIZES as SIZES
from transformer.models.registry import FAMILIES, model_config
from transformer.overrides import SchemaSection, find_key, value_keys
from transformer.system.module_registry import ModuleRegistry
from transformer.tasks.registry import TASKS, task_config
from transformer.training.config import apply_overrides, config_schema, format_as_flags, resolve_config

SIZED = {**BASE, "model": {"size": "transformer-base"}}


def resolved(values):
    return flatten_config(resolve_config(values).to_config())


def test_the_schema_knows_every_key_of_a_resolved_config_with_its_default():
    tree = config_schema(BASE)
    found = resolved(BASE)
    assert set(value_keys(tree)) == set(found) - {
        "parameter_averages",
        "optimizers",
    }  # sections by names that a person makes up
    assert isinstance(find_key(tree, "parameter_averages"), SchemaSection)
    for key in (
        "task.num_beams",
        "model.heads",
        "optimizer.beta2",
        "maps.max_full_rows",
        "sharding.data",
        "keep_checkpoints",
    ):
        bare = {**BASE, "task": {"name": "translation"}, "model": {"family": "encoder_decoder"}, "optimizer": {}}
        assert find_key(tree, key).default == resolved(bare)[key]


def test_an_objectives_optimizer_differs_from_the_shared_one_where_it_says_so():
    own = {"optimizer": {"learning_rate": 1e-3, "beta1": 0.5}, "optimizers": {"critic": {"learning_rate": 1e-4}}}
    experiment = resolve_config({**BASE, **own})
    critic, shared = experiment.optimizer_of("critic"), experiment.optimizer_of("actor")
    assert (critic.learning_rate, critic.beta1) == (1e-4, 0.5)
    assert (shared.learning_rate, shared.beta1) == (1e-3, 0.5)


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ("experiments.instruction_following.task", "num_mazes"),
        ("experiments.instruction_following.task", "num_held_out_mazes"),
        ("experiments.instruction_following.task", "max_clauses"),
        ("experiments.summarization.task", "num_fillers"),
        ("experiments.summarization.task", "num_known_names"),
        ("experiments.few_shot.task", "image_size"),
        ("translation", "tokens_per_batch"),
        ("experiments.in_context_learning.task", "max_word_length"),
    ],
)
def test_what_a_task_makes_one_by_one_has_a_greatest_number(task: str, key: str) -> None:
    with pytest.raises(UserError, match=rf"config\.task\.{key}=1000000000 must be at most"):
        task_config({"name": task, key: 10**9})


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("recurrent_encoder_decoder", "heads"),
        ("encoder_decoder", "heads"),
        ("decoder", "heads"),
        ("encoder", "heads"),
        ("xlnet", "heads"),
        ("vit", "heads"),
        ("experiments.point_clouds.model", "heads"),
        ("experiments.neural_turing_machine.ntm", "read_heads"),
        ("experiments.neural_turing_machine.ntm", "write_heads"),
    ],
)
def test_heads_are_no_more_than_their_maps_can_name(family: str, key: str) -> None:
    with pytest.raises(UserError, match=rf"config\.model\.{key}=1000000000 must be at most"):
        model_config({"family": family, key: 10**9})


@pytest.mark.parametrize("table", [FAMILIES, TASKS], ids=["families", "tasks"])
def test_a_field_that_is_declared_again_keeps_its_range(table: ModuleRegistry):
    for name in table.all_names():
        config = table[name].config_class
        own = typing.get_type_hints(config, include_extras=True)
        for base in filter(dataclasses.is_dataclass, config.__mro__[1:]):
            for field, hint in typing.get_type_hints(base, include_extras=True).items():
                assert own[field] == hint or "Annotated" not in str(hint), f"{config.__name__}.{field} is {own[field]}"


def test_an_override_may_set_what_the_config_does_not_say():
    before = copy.deepcopy(BASE)
    overrides = {
        "model.score": "additive",
        "task.bucket_lengths": (48, 96),
        "parameter_averages.ema.kind": "exponential",
        "model.tie_embeddings": False,
    }
    after = resolved(apply_overrides(BASE, overrides))
    expected = {"model.score": "additive", "task.bucket_lengths": [48, 96], "model.tie_embeddings": False}
    expected |= {"parameter_averages.ema.kind": "exponential", "parameter_averages.ema.decay": 0.999}
    assert {key: after[key] for key in expected} == expected
    assert before == BASE


def test_a_whole_section_is_replaced_before_its_keys_are_checked():
    task = {"name": "language_modeling", "context_length": 8}
    model = {"family": "decoder", "layers": 2}
    overrides = {"model.layers": 3, "task.batch_size": 4, "model": model, "task": task}
    for order in (overrides, dict(reversed(overrides.items()))):
        found = apply_overrides(BASE, order)
        assert found["model"] == {"family": "decoder", "layers": 3}
        assert found["task"] == {"name": "language_modeling", "context_length": 8, "batch_size": 4}
    with pytest.raises(UserError, match=r"unknown key config\.model\.decoder_layers of family decoder"):
        apply_overrides(BASE, {"model": model, "model.decoder_layers": 1})
    assert model == {"family": "decoder", "layers": 2}


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"model.norm_placment": "pre"}, "did you mean config.model.norm_placement?"),
        ({"model.score": "add"}, "config.model.score='add' is unknown: did you mean 'additive'? known: additive, "),
        ({"model": 3}, "config.model=3: that key is a group; set one of its keys, as --config.model.family=VALUE"),
        ({"model": None}, "config.model=None: that key is a group"),
        ({"model": {"family": "x"}}, "config.model.family='x' is unknown: known: bidirectional_language_model, "),
        ({"task.name": 3}, "config.task.name=3 is a int; it must be a str"),
        ({"model.family": "encoder"}, "config.model.encoder_layers=1 is said in the config, but the family encoder"),
        ({"model.size": "gpt9"}, "config.model.size='gpt9' is unknown: did you mean 'gpt1'? known: gpt1, gpt2"),
        ({"seed": None}, "config.seed=None is a NoneType; it must be a int"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(overrides, says):
    with pytest.raises(UserError) as told:
        apply_overrides(BASE, overrides)
    assert says in str(told.value)


def test_a_config_without_sections_is_refused():
    for name in ("task", "model"):
        with pytest.raises(UserError, match=rf"config\.{name}=None must be a group of keys"):
            apply_overrides({key: value for key, value in BASE.items() if key != name}, {"seed": 1})


def test_a_key_that_departs_from_the_size_leaves_the_rest_as_the_size_has_it():
    before = resolved(SIZED)
    for base in (SIZED, resolve_config(SIZED).to_config()):
        after = resolved(apply_overrides(base, {"model.heads": 4, "model.head_dim": 128, "model.kv_heads": None}))
        changes = {"model.heads": 4, "model.head_dim": 128, "model.kv_heads": None, "model.size": None}
        assert after == before | changes
        assert resolved(apply_overrides(base, {"model.heads": 8, "model.dropout": 0.5})) == before | {
            "model.dropout": 0.5
        }


@pytest.mark.parametrize("first", ["gpt2", "bert-base", "transformer-base"])
@pytest.mark.parametrize("second", ["gpt3-125m", "bert-large", "transformer-big", None])
def test_one_size_is_changed_to_another_whatever_was_written_out(first, second):
    dropout = {"dropout": 0.25}
    sparse = {**BASE, "model": {"size": first, **dropout}}
    wanted = (
        resolved({**BASE, "model": {"size": second, **dropout}}) if second else resolved(sparse) | {"model.size": None}
    )
    assert resolved(apply_overrides(sparse, {"model.size": second})) == wanted
    # Written out, the keys that the other family has too come with it, as far as the size did not say them.
    if second is None or SIZES[first].family == SIZES[second].family:
        assert resolved(apply_overrides(resolve_config(sparse).to_config(), {"model.size": second})) == wanted


def test_the_page_has_no_default_where_a_key_has_none():
    page = format_as_flags(SIZED, ("seed",)).splitlines()
    lines = {line.partition("=")[0]: line for line in page}
    assert lines["--config.model.width"] == "--config.model.width=512"
    assert lines["--config.model.size"].endswith("# * default none")
    assert lines["--config.name"].endswith("  # *")
    assert lines["--config.seed"].endswith("  # *> default 0")
    assert lines["# parameter_averages: none"]
