"""Child processes end with their parents, politely or not; frames arrive whole or not at all."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import hofl
from hofl.deploy.device import STOPS, Enrolment, WorkerSettings
from hofl.deploy.guard import guarded
from hofl.deploy.link import LinkLost, receive, send
from hofl.deploy.processes import (
    Backoff,
    Child,
    is_loopback,
    running,
    split_address,
    stop_all,
    undisturbed,
)


def soon(happened: Callable[[], object]) -> bool:
    """Whether it happens before a crowded machine could be the reason that it does not."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if happened():
            return True
        time.sleep(0.05)
    return False


def shell(tmp_path: Path, script: str, grace: float = 5.0) -> Child:
    return Child("shell", lambda: ["sh", "-c", script], tmp_path / "log", os.environ, grace=grace)


def offspring() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [c for c in children if c.name() in ("sh", "sleep") and c.is_running()]


@pytest.mark.parametrize("script", ["sleep 60 & sleep 60", "trap '' TERM; sleep 60 & sleep 60"])
def test_a_child_ends_with_all_that_it_started(tmp_path: Path, script: str) -> None:
    child = shell(tmp_path, script, grace=0.5)
    child.start()
    assert soon(lambda: len(offspring()) == 3)
    seen = offspring()
    stop_all([child])
    assert not child.alive()
    assert not any(map(running, seen))


def test_what_a_child_started_and_lost_is_still_ended_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a process is being killed: for a moment it runs, and its children are not its own."""
    monkeypatch.setattr("hofl.deploy.processes.LOOK_EVERY", 0.0)
    child = shell(tmp_path, "(sleep 60 & read line < go); exec sleep 60")
    os.mkfifo(tmp_path / "go")
    monkeypatch.chdir(tmp_path)
    child.start()
    assert soon(lambda: len(offspring()) == 3)
    (lost,) = (c for c in offspring() if c.name() == "sleep")
    assert child.alive()
    (tmp_path / "go").write_text("on\n")
    assert soon(lambda: lost.ppid() not in {c.pid for c in offspring()})
    assert child.alive()
    child.stop()
    assert not running(lost)


def test_a_child_that_died_alone_is_known_and_its_leavings_are_ended_at_the_next_start(
    tmp_path: Path,
) -> None:
    child = shell(tmp_path, "sleep 60 & echo so it goes; wait")
    child.start()
    assert soon(lambda: {"sleep"} < {c.name() for c in offspring()})  # forked, and it runs
    child._looked = 0.0
    assert child.alive()
    sleeper = next(c for c in offspring() if c.name() == "sleep")
    parent = next(c for c in offspring() if c.name() == "sh")
    parent.kill()
    assert soon(lambda: not child.alive())
    assert child.last_words() == "so it goes"
    child.start()
    assert soon(lambda: not running(sleeper))
    child.stop()


def test_last_words_are_those_of_the_last_start_and_its_error_before_what_follows(
    tmp_path: Path,
) -> None:
    script = tmp_path / "script"
    script.write_text("printf '\\033[91mERROR \\033[0m:  no key\\nit is unknown\\nINFO: bye\\n'")
    child = shell(tmp_path, f". {script}")
    child.start()
    assert soon(lambda: not child.alive())
    assert child.last_words() == "ERROR :  no key it is unknown"
    script.write_text("echo first; echo last")
    child.start()
    assert soon(lambda: not child.alive())
    assert child.last_words() == "last"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's help is Linux's")
def test_a_child_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from hofl.deploy.processes import Child\n"
        "child = Child('c', lambda: ['sleep', '60'], Path(sys.argv[1]), os.environ)\n"
        "child.start(); print(child._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        sleeper = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert soon(lambda: not running(sleeper))


# Starts a process in a session of its own that ignores polite signals, and notes which.
STUBBORN = (
    "trap '' INT TERM HUP; "
    "setsid sh -c \"trap '' INT TERM HUP; echo \\$\\$ > {}; sleep 60; sleep 60\" & "
)


def stubborn(tmp_path: Path, then: str) -> tuple[list[str], Callable[[], psutil.Process]]:
    """The words of a guarded command that leaves such a process behind, and how to find that."""
    noted = tmp_path / "pid"

    def started() -> psutil.Process:
        assert soon(lambda: noted.exists() and noted.read_text().strip())
        return psutil.Process(int(noted.read_text()))

    return guarded(["sh", "-c", STUBBORN.format(noted) + then]), started


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's help is Linux's")
def test_a_guard_ends_what_its_command_left_behind(tmp_path: Path) -> None:
    """The command ends by itself; what it started is in another session and ignores signals."""
    words, started = stubborn(tmp_path, f"read line < {tmp_path / 'go'}; exit 7")
    child = Child("guarded", lambda: words, tmp_path / "log", os.environ)
    os.mkfifo(tmp_path / "go")
    child.start()
    left = started()
    assert running(left)
    (tmp_path / "go").write_text("on\n")
    assert soon(lambda: not child.alive())
    assert not running(left)
    assert child._process is not None
    assert child._process.returncode == 7


def test_a_guard_that_is_stopped_when_its_command_has_ended_still_ends_the_rest() -> None:
    """A stop then goes to nobody: neither an error nor a reason to leave processes behind."""
    code = (
        "import os, signal, sys\n"
        "from hofl.deploy import guard\n"
        "end = guard._end_descendants\n"
        "def stopped():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    end()\n"
        "    print('ended')\n"
        "guard._end_descendants = stopped\n"
        "sys.exit(guard.run(['sh', '-c', 'exit 7']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "ended\n", "")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's help is Linux's")
def test_a_guard_ends_everything_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from hofl.deploy.processes import Child\n"
        "child = Child('c', lambda: sys.argv[2:], Path(sys.argv[1]), os.environ)\n"
        "child.start(); time.sleep(60)"
    )
    words, started = stubborn(tmp_path, "sleep 60")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log"), *words]) as parent:
        left = started()
        family = psutil.Process(parent.pid).children(recursive=True)
        assert left in family
        parent.kill()
    assert soon(lambda: not any(map(running, family)))


def test_a_second_interrupt_waits_while_processes_are_ended() -> None:
    before = signal.getsignal(signal.SIGINT)  # ignored, where a shell started this in background
    with undisturbed():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_waits_between_restarts_double_and_start_over_after_a_long_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    backoff, starts = Backoff(1.0, 8.0), []
    for tenth in range(400):  # everything dies at once
        now = 1000.0 + tenth / 10
        if backoff.ready():
            starts.append(round(now - 1000, 1))
    assert starts == [0.0, 1.0, 3.0, 7.0, 15.0, 23.0, 31.0, 39.0]
    now += 100
    assert backoff.ready()
    now += 1.5
    assert backoff.ready(), "it had run well for long: the waits are short again"


def test_frames_arrive_as_they_were_sent_and_a_broken_one_is_a_lost_link() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.settimeout(60)
        there.settimeout(60)
        payload = bytes(range(256)) * 10
        send(here, {"kind": "plan"}, payload)
        assert receive(there) == ({"kind": "plan"}, payload)
        send(here, {})
        here.sendall(b"\x05\x00\x00\x00" + bytes(8) + b"{]")
        here.close()
        assert receive(there) == ({}, b"")
        with pytest.raises(LinkLost):
            receive(there)
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"\xff" * 12)
        with pytest.raises(LinkLost, match="not a frame"):
            receive(there)


def test_addresses() -> None:
    assert split_address("[::1]:9092") == ("::1", 9092)
    assert is_loopback("127.0.0.2")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    for elsewhere in ("10.0.0.1", "::", "0.0.0.0", "127.example.org", "localhost.example.org"):
        assert not is_loopback(elsewhere)
    for wrong in ("9092", "host:", ":1", "host:70000", "host:0", "host:x"):
        with pytest.raises(hofl.HoflError, match="HOST:PORT"):
            split_address(wrong)


@pytest.mark.parametrize("number", STOPS)
def test_a_stop_that_comes_while_a_device_starts_is_not_lost_and_is_no_traceback(
    number: signal.Signals, tmp_path: Path
) -> None:
    """``hofl device`` blocks both signals before it becomes the supervisor."""
    settings = WorkerSettings(name="device-0", shard=0)
    words = Enrolment(settings, "127.0.0.1:9", tmp_path).command()

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)

    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=block)
    process.send_signal(number)
    _, output = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "Traceback" not in output
    log = (tmp_path / "device.log").read_text()
    assert "stopping" in log
    assert not (tmp_path / "worker.log").exists(), "nothing was started"
