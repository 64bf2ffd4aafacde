"""What an ablation may be, which runs it has, and how its arms differ."""

import pytest
from ml_collections import ConfigDict

from tests.studies.tiny import PLAIN, ablation, base
from transformer.config import UserError, to_config
from transformer.studies.ablations.ablation import DepthSweep, Direction, build_ablation, replace_seeds
from transformer.studies.ablations.run_plan import arm_config_differences, plan_runs

WRONG = {
    "unknown field": ({"arm": {}}, "unknown key ablation.arm: did you mean 'arms'?"),
    "one arm": ({"arms": {"post": {}}}, "ablation.arms has 1 of them"),
    "no arms": ({"arms": {}}, "ablation.arms has 0 of them"),
    "arms as a list": ({"arms": ["post", "pre"]}, "ablation.arms=('post', 'pre') must be a dict"),
    "an arm without overrides": ({"arms": {"post": None, "pre": {}}}, "ablation.arms['post']=None must be a dict"),
    "reference": ({"reference": "poste"}, "ablation.reference='poste' is no arm: did you mean 'post'?"),
    "question": ({"question": " "}, "ablation.question is empty"),
    "no seeds": ({"seeds": ()}, "ablation.seeds=() must hold at least a value"),
    "seed twice": ({"seeds": (1, 2, 1)}, "ablation.seeds=(1, 2, 1) must hold different values"),
    "seed below 0": ({"seeds": (1, -1)}, "ablation.seeds[1]=-1 must be at least 0"),
    "seed of another type": ({"seeds": (1, 2.5)}, "ablation.seeds[1]=2.5 is a float"),
    "no tasks": ({"tasks": {}}, "ablation.tasks is empty"),
    "metric without a split": ({"reported_metric": "loss"}, "metric 'loss' is not written as split/name"),
    "followed without a name": ({"plotted_metrics": ("train/",)}, "metric 'train/' is not written"),
    "direction": ({"direction": "smaller"}, "ablation.direction='smaller' is unknown"),
    "target": ({"target": float("inf")}, "ablation.target=inf must be a finite number"),
    "notable": ({"smallest_effect_of_interest": 0.0}, "ablation.smallest_effect_of_interest=0.0 must be above 0"),
    "nothing tuned": ({"tuning_grid": {"steps": ()}}, "ablation.tuning_grid['steps'] is empty"),
    "tuned twice": ({"tuning_grid": {"steps": (4, 4)}}, "ablation.tuning_grid['steps'] has 4 twice"),
    "tuned as one value": ({"tuning_grid": {"steps": 4}}, "ablation.tuning_grid['steps']=4 must be a tuple"),
    "an arm sets the seed": ({"arms": {"a": {"seed": 3}, "post": {}}}, "arm 'a' sets seed"),
    "tuned sets the seed": ({"tuning_grid": {"seed": (1, 2)}}, "tuning_grid sets seed"),
    "tuned and set": (
        {"tuning_grid": {"model.norm_placement": ("pre",)}},
        "arm 'post' sets model.norm_placement and tuning_grid",
    ),
    "tuned in a group that is set": (
        {"arms": {"post": {"model": {}}, "pre": {}}, "tuning_grid": {"model.heads": (1, 2)}},
        "arm 'post' sets model and tuning_grid tries values of model.heads",
    ),
    "arm and task": (
        {"tasks": {"t": {"model.norm_placement": "pre"}}},
        "arm 'post' sets model.norm_placement and task",
    ),
    "stack": (
        {"initial_gradients": {"d": {"depth": (1,)}}},
        "ablation.initial_gradients['d']: unknown key stack.depth",
    ),
    "depths": (
        {"initial_gradients": {"d": {"depths": (6, 6), "depth_keys": ("model.layers",)}}},
        "ablation.initial_gradients['d']: stack.depths=(6, 6) must hold different values",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_a_study_is_refused_by_name(case):
    changes, says = WRONG[case]
    with pytest.raises(UserError) as refusal:
        ablation(**changes)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_field_is_named():
    with pytest.raises(UserError, match=r"ablation\.reference is missing"):
        build_ablation(**{name: value for name, value in PLAIN.items() if name != "reference"})


def test_plain_values_become_the_study_s_own():
    spec = ablation(
        arms={"post": ConfigDict({"model": {"family": "decoder"}}), "pre": {}},
        tuning_grid={"optimizer.learning_rate": [1e-3, 3e-3], "optimizer.warmup_steps": [0, 10]},
        direction="maximize",
        initial_gradients={"decoder": {"depths": [6, 12], "depth_keys": ["model.layers"], "overrides": {"a": 1}}},
        plotted_metrics=["train/loss", "validation/accuracy"],
    )
    assert spec.arms["post"] == {"model": {"family": "decoder"}}
    assert spec.direction is Direction.MAXIMIZE
    assert spec.initial_gradients["decoder"] == DepthSweep((6, 12), ("model.layers",), {"a": 1})
    assert spec.curves == ("validation/loss", "train/loss", "validation/accuracy")
    assert list(spec.combinations()) == [
        {"optimizer.learning_rate": rate, "optimizer.warmup_steps": warmup}
        for rate in (1e-3, 3e-3)
        for warmup in (0, 10)
    ]


@pytest.mark.parametrize("text", ["1,,3", "", "1,", "1,two", "1.5", "3,3", "-1"])
def test_seeds_of_a_flag_that_are_none_are_refused(text):
    with pytest.raises(UserError, match="seed"):
        replace_seeds(ablation(), text)


def test_seeds_of_a_flag_take_the_place_of_the_study_s():
    assert replace_seeds(ablation(), "7, 8,9").seeds == (7, 8, 9)
    assert replace_seeds(ablation(), "0,4294967295").seeds == (0, 4294967295)  # the range of config.seed


def test_every_seed_task_arm_and_value_is_one_run():
    spec = ablation(tuning_grid={"optimizer.warmup_steps": (0, 2)}, tasks={"short": {"steps": 4}, "long": {"steps": 6}})
    planned = plan_runs(spec, base())
    assert len({each.trial.name for each in planned}) == len(planned) == 2 * 2 * 2 * 2
    # The first half is the first seed, whole.
    assert {each.seed for each in planned[:8]} == {1}
    one = next(each for each in planned if (each.arm_name, each.task_name, each.seed) == ("post", "long", 2))
    config = one.trial.config
    assert (config["seed"], config["steps"], config["model"]["norm_placement"]) == (2, 6, "post")
    assert config["optimizer"]["warmup_steps"] == one.hyperparameters["optimizer.warmup_steps"]
    assert one.description == "arm 'post', task 'long', seed 2, optimizer.warmup_steps=0"


def test_arms_that_are_one_config_are_refused_by_name():
    arms = {"post": {"model.norm_placement": "post"}, "pre": {}, "first": {"model.norm_placement": "pre"}}
    with pytest.raises(UserError, match="'pre' and 'first' resolve to the same config"):
        plan_runs(ablation(arms=arms), base())


def test_another_name_makes_no_other_arm():
    with pytest.raises(UserError, match="'post' and 'again' resolve to the same config"):
        plan_runs(ablation(arms={"post": {}, "again": {"name": "again"}}), base())


def test_an_override_that_no_config_has_is_named():
    with pytest.raises(UserError, match=r"did you mean config\.model\.norm_placement\?"):
        plan_runs(ablation(arms={"post": {"model.norm_placment": "post"}, "pre": {}}), base())


def test_differences_are_those_of_the_resolved_configs():
    arms = {"post": {"model.norm_placement": "post"}, "pre": {}, "wide": {"model.width": 16, "name": "wide"}}
    found = arm_config_differences(plan_runs(ablation(arms=arms), base()), "post")
    assert to_config(found) == {
        "post": [],
        "pre": [{"key": "model.norm_placement", "reference": "post", "arm": "pre"}],
        "wide": [
            {"key": "model.width", "reference": 8, "arm": 16},
            {"key": "model.norm_placement", "reference": "post", "arm": "pre"},
        ],
    }


def test_a_group_that_is_replaced_differs_key_by_key():
    averages = {"last": {"kind": "mean", "start": 1, "every": 1}}
    spec = ablation(arms={"post": {"model.norm_placement": "post"}, "average": {"parameter_averages": averages}})
    found = {
        entry.key
        for entry in arm_config_differences(plan_runs(spec, {**base(), "parameter_averages": {}}), "post")["average"]
    }
    assert {"model.norm_placement", "parameter_averages.last.kind", "parameter_averages.last.start"} <= found
