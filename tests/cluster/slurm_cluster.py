"""A real Slurm of two nodes on this machine: munged, slurmctld and two slurmd in a directory of their own, on loopback.

Both nodes are this host, under addresses of their own (127.0.0.1 and 127.0.0.2), so that torchrun can tell them apart.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from harness.nodes import free_ports

NODES = ("node1", "node2")
SBIN = ("/usr/sbin", "/usr/local/sbin")
START_S = 30.0


def program(name: str) -> str | None:
    return shutil.which(name) or next((f"{place}/{name}" for place in SBIN if Path(place, name).exists()), None)


def missing() -> list[str]:
    """What a cluster needs and this machine lacks."""
    lacks = [f"{name}" for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun") if program(name) is None]
    if os.geteuid() != 0:
        lacks.append("root (slurmd starts tasks for users)")
    return lacks


class SlurmCluster:
    """Running daemons; ``environment`` lets Slurm's commands find them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self._daemons: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        self._start_munge()
        self._configure()
        self._daemon("slurmctld", "slurmctld", "-c", "-f", str(self.config))
        for node in NODES:
            self.start_node(node)
        self.wait_idle()

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.config)}

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | self.environment, timeout=30)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def job_state(self, job_id: str) -> str:
        return self.ask("squeue", "--noheader", "--states=all", "--job", job_id, "--format=%T").strip()

    def start_node(self, node: str) -> None:
        self._daemon(node, "slurmd", "-f", str(self.config), "-N", node)

    def forget(self, node: str) -> int:
        """The pid of a node's slurmd, which is the caller's to end."""
        (self.folder / "pid" / node).unlink(missing_ok=True)  # the next one's is waited for
        return self._daemons.pop(node)

    def kill_node(self, node: str) -> list[int]:
        """The end of a machine: its slurmd and everything that ran on it, at once, without a word."""
        victims = [self.forget(node), *self.processes_on(node)]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return victims

    def processes_on(self, node: str) -> list[int]:
        """Processes of this node's job steps: those with its name in their environment, and the slurmstepd above."""
        tasks, marks = {}, (f"SLURMD_NODENAME={node}\0".encode(), str(self.folder).encode())
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                if entry.name.isdigit() and all(mark in (entry / "environ").read_bytes() for mark in marks):
                    tasks[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        above = {parent for parent in tasks.values() if "slurmstepd" in command_of(parent)}
        return sorted({*tasks, *above} - {os.getpid()})

    def wait_idle(self, seconds: float = START_S) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                states = self.ask("sinfo", "--noheader", "--Node", "--format=%N %t").split("\n")
                if sorted(line for line in states if line) == [f"{node} idle" for node in NODES]:
                    return
            time.sleep(0.2)
        raise TimeoutError(f"nodes are not idle: {self.ask('sinfo', '--Node', '--long')} {self.log()}")

    def log(self) -> str:
        return (self.folder / "log" / "slurmctld").read_text()[-2000:]

    def stop(self) -> None:
        """End every daemon by its pid; jobs first."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.ask("scancel", "--me", "--signal=KILL")
            self.ask("scancel", "--me")
        for pid in {pid for node in NODES for pid in self.processes_on(node)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        order = [*(name for name in self._daemons if name != "munged"), "munged"]
        for name in order:
            pid = self._daemons.get(name)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for pid in self._daemons.values():
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir(exist_ok=True)
        (folder / "key").write_bytes(os.urandom(1024))
        user = pwd.getpwnam("munge")
        for path in (folder / "key", folder):
            os.chown(path, user.pw_uid, user.pw_gid)
        (folder / "key").chmod(0o400)
        folder.chmod(0o755)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        command = [str(program("munged")), "--force", *(f"--{key}={folder / name}" for key, name in files.items())]
        done = subprocess.run(command, user="munge", group="munge", capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr
        self._daemons["munged"] = self._pid(folder / "pid")

    def _configure(self) -> None:
        ports = free_ports(1 + len(NODES))
        host = socket.gethostname().partition(".")[0]
        for name in ("state", "spool", "log", "pid"):
            (self.folder / name).mkdir(exist_ok=True)
        cores = os.cpu_count() or 1
        nodes = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.{number} Port={port} CPUs={cores} State=UNKNOWN"
            for number, (node, port) in enumerate(zip(NODES, ports[1:], strict=True), start=1)
        ]
        settings = {
            "ClusterName": "pilots",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": ports[0],
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.folder / 'munge' / 'socket'}",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool" / "%n",
            "SlurmctldPidFile": self.folder / "pid" / "slurmctld",
            "SlurmdPidFile": self.folder / "pid" / "%n",
            "SlurmctldLogFile": self.folder / "log" / "slurmctld",
            "SlurmdLogFile": self.folder / "log" / "%n",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SwitchType": "switch/none",
            "MpiDefault": "none",
            "SelectType": "select/cons_tres",
            "ReturnToService": 2,
            "SlurmdTimeout": 12,
            "KillWait": 15,
            "MinJobAge": 300,
            "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0",
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        self.config.write_text("\n".join([*lines, *nodes, "PartitionName=main Nodes=ALL Default=YES State=UP", ""]))

    def _daemon(self, name: str, *command: str) -> None:
        done = subprocess.run(
            [str(program(command[0])), *command[1:]], capture_output=True, text=True, env=os.environ | self.environment
        )
        assert done.returncode == 0, done.stderr
        self._daemons[name] = self._pid(self.folder / "pid" / name)

    @staticmethod
    def _pid(file: Path) -> int:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                return int(file.read_text())
            time.sleep(0.05)
        raise TimeoutError(f"no {file}")


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
