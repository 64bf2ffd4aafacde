"""The TPU VM launcher against a stand-in of gcloud: what is called, in which order, and what the hosts' shell gets."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launch.clusters import tpu_vm
from launch.clusters.launcher_common import run_launcher
from tests.launch.engines import HOSTILE_THREES, Engines, last_of_each_flag

OWN = ("--name=demo", "--zone=us-east5-a", "--topology=v5e:4x4")
TRAIN = ("--", "--config=experiments/demo.py", "--workdir=gs://bucket/demo")
QUEUED = ["compute", "tpus", "queued-resources"]
CREATE = ["--node-id=demo", "--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite"]
SSH = ["compute", "tpus", "tpu-vm", "ssh", "demo", "--zone=us-east5-a", "--worker=all"]
RUN = ".venv/bin/python -m launch.train --config=experiments/demo.py --workdir=gs://bucket/demo; echo $? "
# Answers in order, from a file: of describe a state or none, of `status` what every host says or a text that is no
# answer, of each other verb exit codes; the last one stays. With a home, commands for the hosts are really run.
GCLOUD = """
path = {path!r}
answers = json.load(open(path))
verb = next(word for word in sys.argv if word in ("describe", "create", "ssh", "delete"))
command = next((word[10:] for word in sys.argv if word.startswith("--command=")), "")
verb = "status" if "headwise: $s" in command else verb
verb = "log" if "tail -c" in command or "rm -f" in command and "setsid" not in command else verb
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
if command and {home!r}:
    import subprocess

    done = subprocess.run(["bash", "-c", command], cwd={home!r}, env=dict(os.environ, HOME={home!r}))
    sys.exit(done.returncode)
if verb == "status":
    print("\\n".join(["headwise: " + answer] * 4) if answer else "connection closed")
    sys.exit(0 if answer else 255)
if verb == "log":
    print(answer, end="")
    sys.exit(0)
sys.exit(answer)
"""


@pytest.fixture
def engines(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    engines = Engines(tmp_path)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", engines.environment["PATH"])
    monkeypatch.setattr(tpu_vm, "POLL_SECONDS", 0.0)
    return engines


def answer(engines: Engines, describe: list[str | None], home: Path | None = None, **codes: list[Any]) -> None:
    path = engines.folder.parent / "answers.json"
    status = {"status": ["gone", "ended 0"], "log": [""]}
    path.write_text(json.dumps({"describe": describe, "create": [0], "ssh": [0], "delete": [0], **status, **codes}))
    engines.add("gcloud", GCLOUD.format(path=str(path), home=str(home or "")))


def launch(*words: str) -> int:
    try:
        return run_launcher(tpu_vm.COMMAND, tpu_vm.main, last_of_each_flag((*OWN, *words)))
    except SystemExit as ended:
        return int(str(ended.code))


def verbs(engines: Engines) -> list[str]:
    """The verbs of all calls but those that only look; that of ssh is "train", or else what --setup_command says."""
    found = []
    for call in engines.calls("gcloud"):
        command = next((word for word in call.words if word.startswith("--command=")), "")
        ssh = "train" if "launch.train" in command else command.removeprefix("--command=")
        if not ssh.startswith("f=") or ssh == "train":
            found.append(ssh if call.words[2] == "tpu-vm" else call.words[3])
    return found


def test_a_slice_is_asked_for_waited_for_used_and_given_back(engines, capsys):
    answer(engines, [None, "WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"])
    assert launch(*TRAIN) == 0
    assert verbs(engines) == ["describe", "create", *["describe"] * 4, "train", "delete"]
    calls = engines.calls("gcloud")
    assert calls[0].words == [*QUEUED, "describe", "demo", "--zone=us-east5-a", "--format=json"]
    assert calls[1].words == [*QUEUED, "create", "demo", "--zone=us-east5-a", *CREATE]
    (train,) = [call.words for call in calls if "launch.train" in call.words[-1]]
    assert train[:-1] == SSH
    assert RUN in train[-1]
    assert 'f="$HOME/.headwise/demo"' in train[-1]
    assert "&& cd -- headwise || exit;" in train[-1]
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
        "--env=LIBTPU_INIT_ARGS='--xla_a=1 --xla_b=2'",
        "--ssh_options=--tunnel-through-iap --ssh-key-file='my key'",
    )
    assert launch(*flags, "--checkout_dir=check out", "--python=python3", *TRAIN) == 0
    calls = [call.words for call in engines.calls("gcloud")[1:] if "describe" not in call.words]
    create, status, setup, train, *_, delete = calls
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
    host = [*SSH[:4], *place, "--tunnel-through-iap", "--ssh-key-file=my key", "--worker=all"]
    assert setup == [*host, "--command=make install"]
    assert status[:-1] == train[:-1] == host
    assert "cd -- 'check out' || exit;" in train[-1]
    # Quoted twice: within the script that is a word of the command.
    assert "trap : TERM; env " in train[-1]
    assert "LIBTPU_INIT_ARGS=--xla_a=1 --xla_b=2" in train[-1]
    assert "python3 -m launch.train --config=" in train[-1]


def test_a_slice_that_is_there_is_taken_up(engines):
    answer(engines, ["ACTIVE"])
    assert launch(*TRAIN) == 0
    assert verbs(engines) == ["describe", "train", "delete"]


def test_a_slice_that_was_preempted_is_asked_for_again_and_the_run_goes_on(engines):
    answer(
        engines,
        ["ACTIVE", "SUSPENDING", "SUSPENDING", "SUSPENDED", "CREATING", "ACTIVE"],
        status=["gone", None, "gone", "ended 0"],
    )
    assert launch("--spot", *TRAIN) == 0
    again = ["describe", "describe", "describe", "delete", "create", "describe", "describe"]
    assert verbs(engines) == ["describe", "train", *again, "train", "delete"]
    # Its state may lag behind the connection.
    engines.forget()
    states = ["ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDED", "SUSPENDED", "SUSPENDED", "ACTIVE"]
    answer(engines, states, status=["gone", "running", None, None, None, "gone", "ended 0"])
    assert launch("--spot", *TRAIN) == 0
    assert verbs(engines).count("train") == 2


def test_a_run_that_is_told_to_stop_goes_on_when_its_slice_is_lost_and_else_keeps_it(engines, capsys):
    # A preemption first tells the processes: they have saved and left while the slice is still there.
    answer(
        engines,
        ["ACTIVE", "ACTIVE", "ACTIVE", "SUSPENDING", "SUSPENDED", "ACTIVE"],
        status=["gone", "ended 75", "gone", "ended 0"],
    )
    assert launch("--spot", *TRAIN) == 0
    again = ["describe", "describe", "describe", "describe", "delete", "create", "describe"]
    assert verbs(engines) == ["describe", "train", *again, "train", "delete"]
    assert "demo was lost" in capsys.readouterr().out
    # Somebody else told them to: the slice stays, and the code says to start again.
    engines.forget()
    answer(engines, ["ACTIVE"], status=["gone", "ended 75"])
    assert launch(*TRAIN) == 75
    assert verbs(engines) == ["describe", "train", *["describe"] * 4]
    assert "the run was stopped after saving, and demo still exists" in capsys.readouterr().err
    engines.forget()
    answer(engines, ["ACTIVE", "SUSPENDED"], status=["gone", "ended 75"])
    assert launch("--max_restarts=0", *TRAIN) == 1
    assert verbs(engines) == ["describe", "train", "describe", "delete"]


def test_a_slice_that_is_lost_too_often_ends_the_run(engines, capsys):
    states = ["ACTIVE", "SUSPENDED", "SUSPENDED", "SUSPENDED", "ACTIVE", "SUSPENDED"]
    answer(engines, states, status=["gone", None, "gone", None])
    assert launch("--max_restarts=1", *TRAIN) == 1
    assert verbs(engines).count("train") == 2
    assert verbs(engines)[-1] == "delete"
    assert capsys.readouterr().out.count("demo was lost") == 2


@pytest.mark.parametrize("code", [1, 137])
def test_a_run_that_fails_is_not_tried_again_and_its_slice_given_back(engines, code):
    answer(engines, ["ACTIVE"], status=["gone", "running", f"ended {code}"])
    assert launch(*TRAIN) == 1
    assert verbs(engines) == ["describe", "train", "describe", "delete"]


def test_a_connection_that_is_lost_ends_nothing(engines, capsys):
    """The run lives on the hosts: the launcher asks again, and prints the log from where it was."""
    answer(
        engines, ["ACTIVE"], status=["gone", "running", None, None, "running", "ended 0"], log=["one\n", "two\n", ""]
    )
    assert launch(*TRAIN) == 0
    said = capsys.readouterr()
    assert said.out == "one\ntwo\n"
    assert said.err.count("demo cannot be reached: the run continues there, and this tries again") == 1
    words = [call.words[-1] for call in engines.calls("gcloud") if "tail -c" in call.words[-1]]
    assert [word.split("tail -c +")[1].split()[0] for word in words] == ["1", "5", "9", "9", "9"]
    assert verbs(engines).count("train") == 1


@pytest.mark.parametrize("states", [["running", "ended 0"], ["ended 0"]])
def test_a_run_that_is_there_is_followed_and_not_started_again(engines, states):
    answer(engines, ["ACTIVE"], status=states)
    assert launch("--setup_command=fetch", *TRAIN) == 0
    assert verbs(engines) == ["describe", "delete"]


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["ended 0", "ended 0"], 0),
        (["ended 75", "ended 75"], 75),
        (["ended 75", "ended 0"], 75),
        (["ended 134", "ended 2"], 2),
        (["ended 134", "gone"], 1),
        (["ended 75", "ended 134"], 134),
    ],
)
def test_the_exit_code_of_several_hosts_is_that_which_says_most(states, code):
    assert tpu_vm._combine_exit_codes(states) == code


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
    assert f"the hosts could not be reached, and {booked}" in capsys.readouterr().err
    answer(engines, ["ACTIVE"], status=["gone", "ended 2"])
    assert launch(*TRAIN) == 2
    assert f"the run ended with a user error, and {booked}" in capsys.readouterr().err
    answer(engines, ["ACTIVE"], delete=[1])
    assert launch(*TRAIN) == 1
    assert booked in capsys.readouterr().err


def interrupt(*_: object) -> int:
    raise KeyboardInterrupt


def test_an_interruption_leaves_the_slice_and_says_so(engines, capsys, monkeypatch):
    answer(engines, ["ACTIVE"])
    monkeypatch.setattr(tpu_vm, "run_tool", interrupt)
    assert launch(*TRAIN) == 130
    said = capsys.readouterr().err
    assert "demo still exists" in said
    assert (
        "the run continues on demo: the same command follows it again; stop it with: gcloud compute tpus tpu-vm" in said
    )
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


def test_hostile_words_reach_the_host_s_python_as_they_are(engines, tmp_path, monkeypatch):
    """The host's shell really starts a process that outlives the connection, and says how it has ended."""
    home = tmp_path / "home"
    directory = "check out;$(touch harm)"
    engines.add("python", path=home / directory / ".venv" / "bin" / "python")
    answer(engines, ["ACTIVE v5litepod-8"], home=home)
    monkeypatch.setattr(tpu_vm, "POLL_SECONDS", 0.2)
    for first, second, third in HOSTILE_THREES:
        engines.forget()
        words = (*TRAIN[1:2], f"--workdir=gs://bucket/{first}", f"--config.name={second}", f"--data_dir={third}")
        assert launch("--topology=v5e:2x4", "--keep_slice", f"--checkout_dir={directory}", "--", *words) == 0
        (python,) = engines.calls("python")
        assert python.words == ["-m", "launch.train", *words]
    assert not [path for path in tmp_path.rglob("harm")]
    assert not os.path.exists("harm")


def test_the_slice_of_a_name_trains_one_run_at_a_time(engines, tmp_path, capsys, monkeypatch):
    """The host's shell knows whose the running process is; the end of another run is not this one's."""
    home = tmp_path / "home"
    python = home / "headwise" / ".venv" / "bin" / "python"
    engines.add("python", "import time; time.sleep(60 if 'gs://bucket/first' in sys.argv[-1] else 0)", path=python)
    answer(engines, ["ACTIVE v5litepod-8"], home=home)
    monkeypatch.setattr(tpu_vm, "POLL_SECONDS", 0.2)
    first, second = ((*TRAIN[:2], f"--workdir=gs://bucket/{name}") for name in ("first", "second"))
    with monkeypatch.context() as gone:
        gone.setattr(tpu_vm, "_follow_log", interrupt)
        assert launch("--topology=v5e:2x4", *first) == 130
    engines.forget()
    assert launch("--topology=v5e:2x4", *second) == 2
    assert "demo trains gs://bucket/first: pass another --name, or wait until it has ended" in capsys.readouterr().err
    assert verbs(engines) == ["describe"]
    run = home / tpu_vm.FOLDER / "demo"
    os.killpg(int((run / "pid").read_text()), signal.SIGKILL)
    (run / "code").write_text("1")
    assert launch("--topology=v5e:2x4", *second) == 0
    assert (run / "workdir").read_text() == "gs://bucket/second\n"


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
    unique = [words for number, words in enumerate(made) if words not in made[:number]]
    # Nothing is forgotten of a slice that is deleted.
    assert unique == [words for words in shown if "rm -f" not in words[-1] or "setsid" in words[-1]]
    assert not (tmp_path / "harm").exists()
    # What stays booked is not given back.
    assert launch("--dry_run", "--keep_slice", *words) == 0
    assert " delete " not in capsys.readouterr().out
