"""How long a comparison over 1,000 runs takes, from run directories and from an MLflow sqlite store.

    python tests/bench/bench_analysis.py [--runs 1000] [--steps 40]

Promised: directories < 5 s and < 500 MB; store < 10 s. References of the same run: the time in which plain PyYAML
parses the same configurations, and MLflow's own ``search_runs`` over the same store.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from analysis.synthetic import make_sweep  # noqa: E402
from harness.paths import load_path  # noqa: E402
from harness.tracking import Tracker  # noqa: E402

ARMS = ["--baseline", "kernel=baseline", "--candidate", "kernel=nki_rope"]
YAML = (
    "import sys, yaml, pathlib\n"
    "for file in pathlib.Path(sys.argv[1]).glob('*/*/config.yaml'): yaml.safe_load(file.read_text())"
)
SEARCH = (
    "import sys, mlflow; mlflow.set_tracking_uri(sys.argv[1]);"
    "print(len(mlflow.search_runs(search_all_experiments=True, max_results=50000)))"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ok = directories(Path(folder) / "runs", options.runs, options.steps)
        ok &= store(Path(folder) / "store", options.runs, options.steps)
    return 0 if ok else 1


def directories(root: Path, count: int, steps: int) -> bool:
    """Half of the runs in each arm, all of them compared."""
    for run in sweep(count // 2, steps):
        run.write(root)
    size = len((next(root.glob("*/*/config.yaml"))).read_text().splitlines())
    reference, _ = timed([sys.executable, "-c", YAML, str(root)])
    command = [sys.executable, "-m", "analysis", "compare", "--runs", str(root), *ARMS]
    seconds, mib = best_of(command)
    print(f"directories: {count} runs x {steps} steps, configurations of {size} lines")
    print(f"  compare              {seconds:6.2f} s  {mib:5.0f} MB   (promised < 5 s, < 500 MB)")
    print(f"  plain yaml.safe_load {reference:6.2f} s             (ratio {seconds / reference:.2f})")
    return seconds < 5 and mib < 500


def store(root: Path, count: int, steps: int) -> bool:
    """16 runs as the harness sends them; the others are copies of one of them in another experiment."""
    uri = f"sqlite:///{root / 'mlflow.db'}"
    for run in sweep(8, steps):
        Tracker(run.write(root), uri).send()
    fill(root / "mlflow.db", count - 16)
    reference, _ = timed([sys.executable, "-c", SEARCH, uri])
    command = [sys.executable, "-m", "analysis", "compare", "--mlflow", uri, *ARMS, "--where"]
    filtered, _ = best_of([*command, "path=native_4b"])
    # The server cannot filter by a tag that we do not leave to it: every run is looked at.
    seconds, mib = best_of([*command, "versions.torch=2.14.0"])
    print(f"MLflow sqlite store: {count} runs, 16 of them compared")
    print(f"  compare              {seconds:6.2f} s  {mib:5.0f} MB   (promised < 10 s)")
    print(f"  compare, server filters by path {filtered:4.2f} s")
    print(f"  mlflow.search_runs   {reference:6.2f} s             (ratio {seconds / reference:.2f})")
    return seconds < 10


def sweep(pairs: int, steps: int) -> list:
    """Runs with configurations as long as real ones."""
    path = asdict(load_path("native_4b"))
    runs = make_sweep(pairs=pairs, steps=steps, effect=0.02)
    for run in runs:
        run.config["path"] = path
    return runs


def fill(database: Path, count: int) -> None:
    """Copies of one run under new ids, of another path and under another ``run_id``."""
    connection = sqlite3.connect(database)
    (first,) = connection.execute("select run_uuid from runs limit 1").fetchone()
    for table in ("runs", "params", "tags", "metrics", "latest_metrics"):
        columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
        rows = connection.execute(f"select {', '.join(columns)} from {table} where run_uuid = ?", (first,)).fetchall()
        place = columns.index("run_uuid")
        copies = [[*row[:place], copy_id(number), *row[place + 1 :]] for number in range(count) for row in rows]
        marks = ", ".join("?" * len(columns))
        connection.executemany(f"insert into {table} ({', '.join(columns)}) values ({marks})", copies)
    connection.execute("update params set value = 'moe_nki' where key = 'path' and run_uuid like 'c0%'")
    connection.execute("update params set value = '2.13.0' where key = 'version.torch' and run_uuid like 'c0%'")
    connection.execute("update tags set value = run_uuid where key = 'run_id' and run_uuid like 'c0%'")
    connection.commit()
    connection.close()


def copy_id(number: int) -> str:
    return "c0" + uuid.uuid5(uuid.NAMESPACE_OID, str(number)).hex[2:]


def best_of(command: list[str], repeats: int = 3) -> tuple[float, float]:
    """Least seconds and largest memory of several calls."""
    results = [timed(command) for _ in range(repeats)]
    return min(seconds for seconds, _ in results), max(mib for _, mib in results)


def timed(command: list[str]) -> tuple[float, float]:
    """Wall seconds and peak resident memory in MB of a command; its output is dropped, a failure is not."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true"}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
    assert process.stderr is not None
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"{' '.join(command[:4])} failed: {error.decode()[-400:]}")
    return seconds, usage.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
