# ruff: noqa: E501
"""Events that tell how a run went wrong: exceptions, memory, collectives, the Neuron compiler and runtime, signals.

False friends are kept out by the expressions: an autotune candidate that does not fit ("No valid triton configs.
OutOfMemoryError: out of resource"), the allocator's "expandable_segments: memory mapping failed with OOM", an HTTP client's
"ReadTimeoutError ... timed out", and names of errors in the middle of a warning are none of these events.
"""

from __future__ import annotations

from harness.logs.events import Shape

S = Shape
_TYPE = r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*"

# fmt: off
FAILURES: tuple[Shape, ...] = (
    # -- the loss
    S("nonfinite", "is not finite", r"Loss is not finite \(global_avg_loss=(?P<value>[^)]*)\) at step (?P<step>\d+)"),
    S("nonfinite", "is not finite", r"Loss or gradient norm is not finite on at least one rank at step (?P<step>\d+)"),
    # -- Python; the launcher's own ChildFailedError is told by child_failed
    S("exception", "Error", rf"^(?!\S*ChildFailedError){_TYPE}Error)(?::\s?(?P<message>.*)|\s*$)"),
    S("exception", "Exception", rf"^{_TYPE}Exception)(?::\s?(?P<message>.*)|\s*$)"),
    S("exception", "KeyboardInterrupt", r"^(?P<type>KeyboardInterrupt)(?::\s?(?P<message>.*)|\s*$)"),
    S("exception", "SystemExit: ", r"^(?P<type>SystemExit): (?P<message>.*)"),
    S("exception", "StopIteration", r"^(?P<type>StopIteration)(?::\s?(?P<message>.*)|\s*$)"),
    S("exception", "Fatal Python error", r"(?P<type>Fatal Python error): (?P<message>.*)"),
    S("exception", "terminate called after", r"terminate called after throwing an instance of '(?P<type>[^']+)'"),
    # -- memory
    S("oom", "Error", r"^\s*(?:torch|torch\.cuda)\.OutOfMemoryError: (?P<message>.*)"),
    S("oom", "out of memory", r"(?P<message>CUDA error: out of memory)"),
    S("oom", "out of memory", r"(?P<message>HIP out of memory.*)"),
    S("oom", "UR_RESULT_ERROR_OUT_OF", r"(?P<message>UR_RESULT_ERROR_OUT_OF_(?:RESOURCES|DEVICE_MEMORY|HOST_MEMORY))"),
    S("oom", "out of memory", r"(?P<message>NPU out of memory.*)"),
    S("oom", "NRT ", r"(?P<message>NRT allocation failed .*)"),
    S("oom", "TDRV:", r"TDRV:log_dev_mem\s+(?P<message>Failed to allocate .*)"),
    S("oom", "[NCC_", r"\[NCC_EOOM\d+\] ?(?P<message>.*)"),
    S("oom", "oom_kill", r"(?P<message>(?:Detected \d+ )?oom_kill.*)"),
    S("oom", "oom-kill", r"(?P<message>(?:Detected \d+ )?oom-kill.*)"),
    # -- collectives
    S("collective_error", "Watchdog caught", r"Watchdog caught collective operation timeout: (?P<message>.*)"),
    S("collective_error", "Work timed out", r"Work timed out: (?P<message>.*)"),
    S("collective_error", "NCCL error", r"^(?P<message>.*NCCL error(?: in|:| code).*)"),
    S("collective_error", "ncclSystemError", r"(?P<message>ncclSystemError.*)"),
    S("collective_error", "ncclUnhandled", r"(?P<message>ncclUnhandledCudaError.*)"),
    S("collective_error", "by peer", r"^(?P<message>.*[Cc]onnection closed by peer.*)"),
    S("collective_error", "by peer", r"^(?P<message>.*(?:[Gg]loo|TCPStore|socket|\[c10d\]).*Connection reset by peer.*)"),
    # -- the Neuron compiler and runtime
    S("compile_error", "neuronx-cc", r"neuronx-cc compilation\)? with exit code (?P<exitcode>-?\d+)(?:: (?P<message>.*))?"),
    S("compile_error", "Compil", r"Compilation failed for (?P<message>.*)"),
    S("compile_error", "[NCC_", r"\[(?P<code>NCC_[A-Z]+\d+)\] ?(?P<message>.*)"),
    S("nrt_error", "NRT ", r"NRT EXECUTION FAILED: (?P<message>.*)"),
    S("nrt_error", "NRT ", r"NRT Execution error (?P<message>.*)"),
    S("nrt_error", "NRT:", r"ERROR\s+NRT:(?P<function>\w+)\s+(?P<message>.*)"),
    S("nrt_error", "TDRV:", r"ERROR\s+TDRV:(?!log_dev_mem)(?P<function>\w+)\s+(?P<message>.*)"),
    S("cpu_fallback", "CPU fallback failed", r"CPU fallback failed for '(?P<operation>[^']*)'"),
    # -- processes
    S("signal", "signal", r"Sending process (?P<pid>\d+) closing signal (?P<name>\w+)"),
    S("signal", "signal", r"Received (?P<signal>\d+) death signal"),
    S("signal", "signal", r"got signal: (?P<signal>\d+)"),
    S("signal", "signal", r"died from signal (?P<signal>\d+)"),
    S("signal", "Received SIG", r"Received (?P<name>SIG[A-Z]+)"),
    S("signal", "slurmstepd: error", r"slurmstepd: error: (?P<message>.*CANCELLED.*)", {"name": "CANCELLED"}),
    S("signal", "Killed", r"^(?:\S+ line \d+: +\d+ )?Killed\b", {"name": "SIGKILL"}),
    S("child_failed", "failed (exitcode:", r"failed \(exitcode: (?P<exitcode>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)"),
    S("child_failed", "exited with code", r"rank (?P<child_rank>\d+) exited with code (?P<exitcode>[1-9]\d*)"),
    S("child_rank", "rank      : ", r"^\s*rank      : (?P<child_rank>\d+) \(local_rank: (?P<local_rank>\d+)\)"),
    S("child_exit", "exitcode  : ", r"^\s*exitcode  : (?P<exitcode>-?\d+) \(pid: (?P<pid>\d+)\)"),
    S("job_failed", "Error", r"ChildFailedError:"),
)
# fmt: on
"""``child_rank`` is no event: it tells whose exit code the next line of torchrun's summary gives."""
