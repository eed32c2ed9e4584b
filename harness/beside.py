"""A process with torch and Transformers beside the harness: it loads checkpoints and computes with them.

A process of its own for three reasons: the harness stays without torch; torchtitan's Transformers backend patches
``PreTrainedModel`` for its whole process, so that a model loaded there has its norm weights reset; and want of memory
ends this process alone. It is started early, so that its imports (4 s) fall into the time in which a training winds up.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.launch import dying_with_parent

ROOT = Path(__file__).resolve().parent.parent
ALONE = {
    "CUDA_VISIBLE_DEVICES": "",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""On the CPU alone, away from the accelerator; and nothing is fetched: what is tested is what lies in the directory."""
POLL_S = 0.2


class NoAnswer(Exception):
    """The process ended, or took too long; the message says which."""


class Beside:
    """``with Beside() as beside: beside.ask("reload", directory=...)``."""

    def __init__(self, *, interrupted: Callable[[], bool] = lambda: False) -> None:
        """Start the process. Once ``interrupted`` is true no answer is waited for any longer."""
        self._interrupted = interrupted
        search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process runs)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.beside"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | ALONE | {"PYTHONPATH": search},
            start_new_session=True,  # a Ctrl-C is for the harness, which then closes this process
            preexec_fn=dying_with_parent(),
        )

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def ask(self, task: str, *, timeout_s: float, **arguments: Any) -> dict[str, Any]:
        """The answer of one of TASKS; ``arguments`` and the answer are what JSON can hold.

        Raises:
            NoAnswer: the process ended without one, or was ended after ``timeout_s`` seconds.
        """
        assert self._process.stdin is not None
        line = json.dumps({"task": task, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:
            raise NoAnswer(self._last_words()) from None
        return self._answer(time.monotonic() + timeout_s, timeout_s)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):  # a pipe that the process no longer reads
                stream.close()  # type: ignore[union-attr]

    def _answer(self, deadline: float, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], POLL_S)
            if not ready and (self._interrupted() or time.monotonic() > deadline):
                self._process.kill()
                raise NoAnswer("interrupted" if self._interrupted() else f"no answer within {timeout_s:,.0f} s")
            if not ready:
                continue
            chunk = os.read(self._process.stdout.fileno(), 1 << 20)
            if not chunk:
                raise NoAnswer(self._last_words())
            data += chunk
        answer = json.loads(data)
        if "error" in answer:
            raise NoAnswer(answer["error"])
        return answer["result"]

    def _last_words(self) -> str:
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            return f"killed by {name}" + (": too little memory?" if name == "SIGKILL" else "")
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit code {code}"


def serve() -> None:
    """Answer one JSON line per request on what was standard output; prints of libraries go to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from harness.reference import reference_losses
    from harness.reload import reload_here

    tasks = {"reload": reload_here, "reference": reference_losses}
    import torch  # noqa: F401  (imported before the first request comes: that is what the process is started early for)
    from transformers import AutoModelForCausalLM  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": tasks[request["task"]](**request["arguments"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
