"""Claiming the control socket's path on a real file system, beside real daemons, living and dead."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_router.runtime.control_endpoint import (
    ControlEndpoint,
    ControlSocketInUseError,
    ControlSocketRefusedError,
    claim_endpoint,
    directory_problem,
    examine_endpoint,
)

ANOTHER_DAEMON = """
import sys, time
from strata_router.runtime.control_endpoint import claim_endpoint
endpoint = claim_endpoint(sys.argv[1], default_path="")
print("listening", flush=True)
time.sleep(600)
"""

NOBODY = 65534


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    return private


@pytest.fixture
def path(directory: Path) -> Path:
    return directory / "control.sock"


@pytest.fixture
def other_daemon(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in a process of its own that already has the socket."""
    command = [sys.executable, "-c", ANOTHER_DAEMON, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"listening\n"
        yield daemon
        daemon.kill()


def claim(path: Path, default_path: str = "") -> ControlEndpoint:
    return claim_endpoint(str(path), default_path)


def refusal(path: Path, default_path: str = "") -> str:
    with pytest.raises(ControlSocketRefusedError) as refused:
        claim(path, default_path)
    return str(refused.value)


def test_the_socket_is_for_its_owner_only_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        with claim(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_ISSOCK(path.stat().st_mode)
        assert os.umask(0) == 0, "the process's own umask is left as it was"
    finally:
        os.umask(before)


def test_the_socket_listens_and_no_child_inherits_it(path: Path) -> None:
    with claim(path) as endpoint:
        assert not endpoint.listener.get_inheritable()
        assert not endpoint.listener.getblocking()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_closing_removes_the_socket_once(path: Path) -> None:
    endpoint = claim(path)
    endpoint.close()
    assert not path.exists()
    with claim(path):
        endpoint.close()
        assert path.exists()


def test_b27_closing_leaves_what_is_not_ours_any_more(path: Path) -> None:
    endpoint = claim(path)
    path.unlink()
    with claim(path):
        endpoint.close()
        assert path.is_socket()
    endpoint = claim(path)
    path.unlink()
    path.write_text("a file")
    endpoint.close()
    assert path.read_text() == "a file"


def test_closing_does_not_mind_that_the_socket_is_gone(path: Path) -> None:
    endpoint = claim(path)
    path.unlink()
    endpoint.close()


def test_b27_a_live_socket_is_never_taken_over(
    path: Path, other_daemon: subprocess.Popen[bytes]
) -> None:
    inode = path.stat().st_ino
    message = refusal(path)
    assert f"another daemon (pid {other_daemon.pid})" in message
    assert str(path) in message
    assert path.stat().st_ino == inode
    assert other_daemon.poll() is None


def test_b27_a_daemon_that_accepts_nothing_is_still_alive(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as filler:
            filler.connect(str(path))
            assert "another daemon listens" in refusal(path)
    assert path.is_socket()


def test_b27_a_stale_socket_is_left_for_the_operator_who_is_told_what_to_do(
    path: Path, other_daemon: subprocess.Popen[bytes]
) -> None:
    other_daemon.kill()
    other_daemon.wait()
    message = refusal(path)
    assert message.startswith(f"stale control socket {path}")
    assert "make sure that it is dead" in message
    assert message.endswith(f"rm {path}")
    assert path.is_socket()
    path.unlink()
    claim(path).close()


@pytest.mark.parametrize("kind", ["regular file", "directory", "symbolic link", "special file"])
def test_b27_what_is_not_a_socket_is_left_alone(path: Path, kind: str) -> None:
    match kind:
        case "regular file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case "symbolic link":
            path.symlink_to("nowhere")
        case _:
            os.mkfifo(path)
    before = path.lstat()
    message = refusal(path)
    assert f"is a {kind}, not a socket, and was left alone" in message
    assert path.lstat() == before


def test_a_symbolic_link_to_a_live_socket_is_left_alone_too(path: Path) -> None:
    with claim(path):
        link = path.with_name("link.sock")
        link.symlink_to(path)
        assert "symbolic link" in refusal(link)
        assert link.is_symlink()


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o750, 0o755, 0o770, 0o777, 0o704])
def test_a_directory_that_others_may_use_is_refused(directory: Path, path: Path, mode: int) -> None:
    directory.chmod(mode)
    message = refusal(path)
    assert f"{directory} has mode {mode:04o}" in message
    assert f"chmod 700 {directory}" in message
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(directory: Path, path: Path) -> None:
    os.chown(directory, NOBODY, -1)
    message = refusal(path)
    assert f"{directory} belongs to nobody, but the daemon runs as root" in message
    os.chown(directory, 4_000_123, -1)
    assert "belongs to uid 4000123" in refusal(path)


def test_a_configured_directory_must_exist(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    message = refusal(missing / "control.sock")
    assert f"{missing} cannot be used: No such file or directory" in message
    assert f"install -d -m 700 {missing}" in message
    assert not missing.exists()


def test_the_default_directory_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "strata-router" / "control.sock"
    with claim(path, default_path=str(path)):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with claim(path, default_path=str(path)):
        pass  # a second start finds it there


def test_the_default_directory_needs_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "strata-router" / "control.sock"
    assert "cannot be used" in refusal(path, default_path=str(path))
    assert not (tmp_path / "missing").exists()


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a directory" in refusal(tmp_path / "file" / "control.sock")


def test_a_path_that_linux_cannot_hold_is_named_with_the_limit(directory: Path) -> None:
    long_path = directory / ("x" * 108)
    message = refusal(long_path)
    assert "at most 107" in message
    longest = str(directory) + "/" + "x" * (107 - len(str(directory)) - 1)
    claim(Path(longest)).close()


def test_a_name_that_the_file_system_refuses_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    """A full file system, for example; the kernel's word comes through."""

    def full(self: socket.socket, address: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(socket.socket, "bind", full)
    assert f"control socket {path} cannot be made: No space left on device" in refusal(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may examine everything")
def test_a_path_that_cannot_be_examined_is_a_clear_error(directory: Path, path: Path) -> None:
    directory.chmod(0o000)
    assert "cannot be examined" in refusal(path)


def test_a_private_directory_has_no_problem(directory: Path) -> None:
    assert directory_problem(str(directory)) is None


def test_nobody_is_told_to_make_a_shared_directory_private(tmp_path: Path) -> None:
    """``chmod 700`` on the directory of everybody's temporary files ruins the machine."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    problem = directory_problem(str(shared))
    assert problem is not None
    assert "has mode 1777" in problem
    assert "chmod" not in problem
    assert f"for example {shared}/strata-router/control.sock" in problem
    assert problem.endswith(f"(install -d -m 700 {shared}/strata-router)")


@pytest.mark.parametrize("directory", ["/", "/tmp", "/run", "/var/tmp", "/usr/lib", "/etc"])
def test_no_directory_of_the_system_is_to_be_changed(directory: str) -> None:
    problem = directory_problem(directory)
    assert problem is not None
    assert "chmod" not in problem
    assert "chown" not in problem
    assert "a directory of its own" in problem


def test_nobody_is_told_to_change_the_home_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    problem = directory_problem(str(tmp_path))
    assert problem is not None
    assert "chmod" not in problem


def test_a_shared_directory_of_another_user_is_not_to_be_given_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    problem = directory_problem(str(tmp_path))
    assert problem is not None
    assert "chown" not in problem
    assert problem.endswith(f"(install -d -m 700 -o nobody {tmp_path}/strata-router)")


def test_a_directory_that_cannot_be_reached_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    """Root may reach everything, so the kernel's answer is replaced."""

    def denied(path: str) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", denied)
    problem = directory_problem(str(directory))
    monkeypatch.undo()
    assert problem is not None
    assert "cannot be reached by" in problem
    assert "install -d" not in problem


def examined(path: Path, default_path: str = "") -> str:
    return examine_endpoint(str(path), default_path)


def refused_when_examined(path: Path) -> ControlSocketRefusedError:
    with pytest.raises(ControlSocketRefusedError) as refused:
        examined(path)
    return refused.value


def test_examining_a_free_path_makes_nothing(path: Path) -> None:
    assert examined(path) == f"{path.parent} is ours, and nothing is in the way"
    assert not path.exists()


def test_examining_says_that_the_default_directory_will_be_made(tmp_path: Path) -> None:
    path = tmp_path / "strata-router" / "control.sock"
    assert examined(path, str(path)) == f"{path.parent} will be made, mode 0700"
    assert not path.parent.exists()
    assert "install -d" in str(refused_when_examined(path))


def test_examining_tells_a_living_daemon_from_a_dead_one(
    path: Path, other_daemon: subprocess.Popen[bytes]
) -> None:
    assert isinstance(refused_when_examined(path), ControlSocketInUseError)
    other_daemon.kill()
    other_daemon.wait()
    stale = refused_when_examined(path)
    assert not isinstance(stale, ControlSocketInUseError)
    assert str(stale).startswith("stale control socket")
    assert path.is_socket()


def test_examining_refuses_what_claiming_refuses(directory: Path, path: Path) -> None:
    assert "at most 107" in str(refused_when_examined(directory / ("x" * 108)))
    path.write_text("precious")
    assert "not a socket" in str(refused_when_examined(path))
    directory.chmod(0o755)
    assert "chmod 700" in str(refused_when_examined(path))


def test_examining_sees_that_nothing_can_be_put_there(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    """Root may write everywhere, so the kernel's answer is replaced."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "is not writable by" in str(refused_when_examined(path))
