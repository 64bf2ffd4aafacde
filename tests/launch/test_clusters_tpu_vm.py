"""The TPU VM launcher against a stand-in of gcloud: what is called, in which order, and what the hosts' shell gets."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from launch.clusters import tpu_vm
from launch.clusters.launcher_common import run_launcher
from tests.launch.engines import HOSTILE_THREES, Engines

OWN = ("--zone=us-east5-a", "--topology=v5e:4x4")
TRAIN = ("--", "--config=experiments/demo.py", "--workdir=gs://bucket/demo")
QUEUED = ["compute", "tpus", "queued-resources"]
CREATE = ["--node-id=demo", "--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"]
SSH = ["compute", "tpus", "tpu-vm", "ssh", "demo", "--zone=us-east5-a", "--worker=all"]
RUN = "cd -- headwise && exec .venv/bin/python -m launch.train --config=experiments/demo.py --workdir=gs://bucket/demo"
# Answers in order, from a file: of describe a state or none, of each other verb exit codes; the last one stays.
GCLOUD = """
path = {path!r}
answers = json.load(open(path))
verb = next(word for word in sys.argv if word in ("describe", "create", "ssh", "delete"))
answer = answers[verb][0]
if len(answers[verb]) > 1:
    answers[verb].pop(0)
    json.dump(answers, open(path, "w"))
if verb == "describe" and answer is None:
    sys.exit("ERROR: (gcloud.compute.tpus.queued-resources.describe) NOT_FOUND: Resource was not found")
if verb == "describe" and answer.startswith("ERROR"):
    sys.exit(answer)
if verb == "describe":
    state, _, kind = answer.partition(" ")
    node = dict(acceleratorType=kind or "v5litepod-16")
    print(json.dumps(dict(name="demo", state=dict(state=state), tpu=dict(nodeSpec=[dict(nodeId="demo", node=node)]))))
    sys.exit(0)
command = next((word for word in sys.argv if word.startswith("--command=")), "")
if command and {home!r}:
    import subprocess

    sys.exit(subprocess.run(["bash", "-c", command[10:]], cwd={home!r}).returncode)
sys.exit(answer)
"""


@pytest.fixture
def engines(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    engines = Engines(tmp_path)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", engines.environment["PATH"])
    monkeypatch.setattr(tpu_vm, "POLL_SECONDS", 0.0)
    return engines


def answer(engines: Engines, describe: list[str | None], home: Path | None = None, **codes: list[int]) -> None:
    path = engines.folder.parent / "answers.json"
    path.write_text(json.dumps({"describe": describe, "create": [0], "ssh": [0], "delete": [0], **codes}))
    engines.add("gcloud", GCLOUD.format(path=str(path), home=str(home or "")))


def launch(*words: str) -> int:
    try:
        return run_launcher(tpu_vm.COMMAND, tpu_vm.main, (*OWN, *words))
    except SystemExit as ended:
        return int(str(ended.code))


def verbs(engines: Engines) -> list[str]:
    """The verbs of all calls; that of ssh is "train", or else what --setup_command says."""
    found = []
    for call in engines.calls("gcloud"):
        command = next((word for word in call.words if word.startswith("--command=")), "")
        ssh = "train" if "launch.train" in command else command.removeprefix("--command=")
        found.append(ssh if call.words[2] == "tpu-vm" else call.words[3])
    return found


def test_a_slice_is_asked_for_waited_for_used_and_given_back(engines, capsys):
    answer(engines, [None, "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"])
    assert launch(*TRAIN) == 0
    assert verbs(engines) == ["describe", "create", *["describe"] * 4, "train", "delete"]
    calls = engines.calls("gcloud")
    assert calls[0].words == [*QUEUED, "describe", "demo", "--zone=us-east5-a", "--format=json"]
    assert calls[1].words == [*QUEUED, "create", "demo", "--zone=us-east5-a", *CREATE]
    assert calls[-2].words == [*SSH, f"--command={RUN}"]
    assert calls[-1].words == [*QUEUED, "delete", "demo", "--zone=us-east5-a", "--force", "--quiet"]
    # A state is told once.
    assert capsys.readouterr().out.count("is WAITING_FOR_RESOURCES") == 1


def test_flags_reach_gcloud(engines):
    answer(engines, [None, "ACTIVE"])
    flags = (
        "--name=other",
        "--project=paying",
        "--spot",
        "--options=--network=net --tags='a b'",
        "--setup_command=make install",
    )
    assert launch(*flags, "--checkout_dir=check out", "--python=python3", *TRAIN) == 0
    create, setup, train, delete = (call.words for call in engines.calls("gcloud")[1:] if "describe" not in call.words)
    place = ["other", "--zone=us-east5-a", "--project=paying"]
    assert create == [
        *QUEUED,
        "create",
        *place,
        "--node-id=other",
        *CREATE[1:],
        "--spot",
        "--network=net",
        "--tags=a b",
    ]
    assert delete == [*QUEUED, "delete", *place, "--force", "--quiet"]
    assert setup == [*SSH[:4], *place, "--worker=all", "--command=make install"]
    assert train[-1].startswith("--command=cd -- 'check out' && exec python3 -m launch.train --config=")


def test_a_slice_that_is_there_is_taken_up(engines):
    answer(engines, ["ACTIVE"])
    assert launch(*TRAIN) == 0
    assert verbs(engines) == ["describe", "train", "delete"]


def test_a_slice_that_was_preempted_is_asked_for_again_and_the_run_goes_on(engines):
    answer(engines, ["ACTIVE", "SUSPENDING", "SUSPENDED", "CREATING", "ACTIVE"], ssh=[255, 0])
    assert launch("--spot", *TRAIN) == 0
    again = ["describe", "describe", "delete", "create", "describe", "describe"]
    assert verbs(engines) == ["describe", "train", *again, "train", "delete"]
    # Its state may lag behind the connection.
    engines.forget()
    answer(engines, ["ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDED", "SUSPENDED", "ACTIVE"], ssh=[255, 0])
    assert launch("--spot", *TRAIN) == 0
    assert verbs(engines).count("train") == 2


def test_a_run_that_is_told_to_stop_goes_on_when_its_slice_is_lost_and_else_keeps_it(engines, capsys):
    # A preemption first tells the processes: they have saved and left while the slice is still there.
    answer(engines, ["ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDING", "SUSPENDED", "ACTIVE"], ssh=[75, 0])
    assert launch("--spot", *TRAIN) == 0
    again = ["describe", "describe", "describe", "describe", "delete", "create", "describe"]
    assert verbs(engines) == ["describe", "train", *again, "train", "delete"]
    assert "demo was lost" in capsys.readouterr().out
    # Somebody else told them to: the slice stays, and the code says to start again.
    engines.forget()
    answer(engines, ["ACTIVE"], ssh=[75])
    assert launch(*TRAIN) == 75
    assert verbs(engines) == ["describe", "train", *["describe"] * 4]
    assert "the run was stopped after saving, and demo still exists" in capsys.readouterr().err
    engines.forget()
    answer(engines, ["ACTIVE", "SUSPENDED"], ssh=[75])
    assert launch("--max_restarts=0", *TRAIN) == 1
    assert verbs(engines) == ["describe", "train", "describe", "delete"]


def test_a_slice_that_is_lost_too_often_ends_the_run(engines, capsys):
    answer(engines, ["ACTIVE", "SUSPENDED", "SUSPENDED", "ACTIVE", "SUSPENDED"], ssh=[255])
    assert launch("--max_restarts=1", *TRAIN) == 1
    assert verbs(engines).count("train") == 2
    assert verbs(engines)[-1] == "delete"
    assert capsys.readouterr().out.count("demo was lost") == 2


@pytest.mark.parametrize("code", [1, 137])
def test_a_run_that_fails_is_not_tried_again_and_its_slice_given_back(engines, code):
    answer(engines, ["ACTIVE"], ssh=[code])
    assert launch(*TRAIN) == 1
    assert verbs(engines) == ["describe", "train", "describe", "delete"]


def test_a_setup_that_fails_starts_no_training(engines):
    answer(engines, ["ACTIVE"], ssh=[3])
    assert launch("--setup_command=fetch", *TRAIN) == 1
    assert verbs(engines) == ["describe", "fetch", "describe", "delete"]


def test_what_stays_booked_is_told_with_the_call_that_gives_it_back(engines, capsys):
    booked = (
        "demo still exists: run the same command again to resume, or release it with: "
        "gcloud compute tpus queued-resources delete demo --zone=us-east5-a --force --quiet\n"
    )
    answer(engines, ["ACTIVE"])
    assert launch("--keep_slice", *TRAIN) == 0
    assert capsys.readouterr().out == booked
    answer(engines, ["ACTIVE"], ssh=[255])
    assert launch(*TRAIN) == 1
    assert capsys.readouterr().err.endswith(f"the connection was lost, and {booked}")
    answer(engines, ["ACTIVE"], ssh=[2])
    assert launch(*TRAIN) == 2
    assert capsys.readouterr().err.endswith(f"the run ended with a user error, and {booked}")
    answer(engines, ["ACTIVE"], delete=[1])
    assert launch(*TRAIN) == 1
    assert capsys.readouterr().err.endswith(booked)


def test_an_interruption_leaves_the_slice_and_says_so(engines, capsys, monkeypatch):
    answer(engines, ["ACTIVE"])

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(tpu_vm, "run_tool", interrupt)
    assert launch(*TRAIN) == 130
    said = capsys.readouterr().err
    assert "demo still exists" in said
    assert "start the same command again to resume" in said


@pytest.mark.parametrize(
    ("describe", "codes", "made"),
    [
        ([None, "FAILED"], {}, ["describe", "create", "describe"]),
        ([None], {"create": [1]}, ["describe", "create"]),
        (["FAILED"], {"delete": [1]}, ["describe", "delete"]),
    ],
)
def test_a_request_that_is_refused_ends_the_wait(engines, describe, codes, made):
    answer(engines, describe, **codes)
    assert launch(*TRAIN) == 1
    assert verbs(engines) == made


@pytest.mark.parametrize(
    ("describe", "says"),
    [
        (
            ["ERROR: (gcloud) You do not currently have an active account"],
            "gcloud cannot describe the slice: ERROR: (gcl",
        ),
        (
            ["ACTIVE v5litepod-256"],
            "the queued resource of this name is a v5litepod-256, and this run needs a v5litepod-16",
        ),
        (["ODD"], "demo is in the unknown state ODD"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(engines, capsys, describe, says):
    answer(engines, describe)
    assert launch(*TRAIN) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert says in error
    assert "create" not in verbs(engines)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("--topology=v5p:4x4x16",),
            "v5p:4x4x16 is not a TPU VM: v5p-512 is 4x8x8; use that, or python -m launch.clusters.gke",
        ),
        (("--topology=tpu7x:2x2x2",), "tpu7x is no TPU VM that gcloud's queued resources have"),
        (("--max_restarts=-1",), "--max_restarts=-1 must be at least 0"),
        (("--zone=",), "clusters.tpu_vm needs --zone=VALUE"),
        (("--checkout_dir=--x",), "--checkout_dir='--x' must not"),
        (("--python=-c",), "--python='-c' must not"),
        (("--options=x",), "--options=x: 'x' is not of the form --key=value"),
    ],
)
def test_mistakes_are_told_before_gcloud_is_called(engines, capsys, words, says):
    answer(engines, ["ACTIVE"])
    assert launch(*words, *TRAIN) == 2
    assert says in capsys.readouterr().err
    assert engines.calls() == []


def test_hostile_words_reach_the_host_s_python_as_they_are(engines, tmp_path):
    home = tmp_path / "home"
    directory = "check out;$(touch harm)"
    engines.add("python", path=home / directory / ".venv" / "bin" / "python")
    answer(engines, ["ACTIVE"], home=home)
    for first, second, third in HOSTILE_THREES:
        engines.forget()
        words = (*TRAIN[1:2], f"--workdir=gs://bucket/{first}", f"--config.name={second}", f"--data_dir={third}")
        assert launch(f"--checkout_dir={directory}", "--", *words) == 0
        (python,) = engines.calls("python")
        assert python.words == ["-m", "launch.train", *words]
    assert not [path for path in tmp_path.rglob("harm")]
    assert not os.path.exists("harm")


def test_the_dry_run_is_a_script_of_the_very_calls_and_makes_none(engines, tmp_path, capsys):
    answer(engines, ["ACTIVE"])
    flags = ("--setup_command=fetch 'it'", "--spot", "--project=paying")
    words = (*TRAIN, "--config.name=a'b $(touch harm)")
    assert launch("--dry_run", *flags, *words) == 0
    text = capsys.readouterr().out
    assert engines.calls() == []
    subprocess.run(["bash", "-c", text], env=engines.environment, cwd=tmp_path, check=True, capture_output=True)
    shown = [call.words for call in engines.calls("gcloud")]
    engines.forget()
    answer(engines, [None, "ACTIVE"])
    assert launch(*flags, *words) == 0
    made = [call.words for call in engines.calls("gcloud")]
    assert [words for number, words in enumerate(made) if words not in made[:number]] == shown
    assert not (tmp_path / "harm").exists()
    # What stays booked is not given back.
    assert launch("--dry_run", "--keep_slice", *words) == 0
    assert " delete " not in capsys.readouterr().out
