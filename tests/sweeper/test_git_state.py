"""What a run records of its code tells two dirty work trees apart, and stays still where nothing changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.manifest import git_state


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A repository of one commit: a module, a configuration, a README."""
    for name, content in (("harness/a.py", "a = 1\n"), ("conf/c.yaml", "x: 1\n"), ("README.md", "hello\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "first")
    return tmp_path


def git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(directory), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def edit(root: Path) -> None:
    (root / "harness/a.py").write_text("a = 2\n")


def edit_otherwise(root: Path) -> None:
    (root / "harness/a.py").write_text("a = 3\n")


def stage(root: Path) -> None:
    edit(root)
    git(root, "add", "harness/a.py")


def delete(root: Path) -> None:
    (root / "harness/a.py").unlink()


def rename(root: Path) -> None:
    git(root, "mv", "harness/a.py", "harness/b.py")


def add_untracked(root: Path) -> None:
    (root / "conf/new ümläut.yaml").write_text("y: 1\n")


def add_link(root: Path) -> None:
    (root / "conf/link.yaml").symlink_to("c.yaml")


CHANGES = (edit, edit_otherwise, delete, rename, add_untracked, add_link)


def test_a_clean_tree_says_so(checkout):
    assert git_state(checkout) == {"commit": git(checkout, "rev-parse", "HEAD"), "dirty": False, "changes": "none"}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_the_code_is_hashed_and_undone_again(change, checkout):
    clean = git_state(checkout)
    change(checkout)
    first, again = git_state(checkout), git_state(checkout)
    assert first == again
    assert first["dirty"] is True
    assert first["commit"] == clean["commit"]
    assert len(first["changes"]) == 16
    git(checkout, "reset", "-q", "--hard")
    git(checkout, "clean", "-fdq")
    assert git_state(checkout) == clean


def test_no_two_changes_have_the_same_hash(checkout):
    hashes = set()
    for change in CHANGES:
        change(checkout)
        hashes.add(git_state(checkout)["changes"])
        git(checkout, "reset", "-q", "--hard")
        git(checkout, "clean", "-fdq")
    assert len(hashes) == len(CHANGES)


def test_staged_or_not_is_the_same_code(checkout):
    edit(checkout)
    unstaged = git_state(checkout)
    stage(checkout)
    assert git_state(checkout) == unstaged


def test_what_shapes_no_run_is_no_change(checkout):
    (checkout / "README.md").write_text("bye\n")
    (checkout / "notes.txt").write_text("new\n")
    (checkout / "harness/__pycache__").mkdir()
    (checkout / "harness/__pycache__/a.pyc").write_bytes(b"\0")
    assert git_state(checkout)["changes"] == "none"
    assert git_state(checkout)["dirty"] is False


def test_outside_a_checkout_nothing_is_claimed(tmp_path):
    assert git_state(tmp_path) == {}


def test_what_cannot_be_read_equals_no_other_run(checkout, monkeypatch):
    import harness.manifest as manifest

    times = iter(("t1", "t2"))
    monkeypatch.setattr(manifest, "now", lambda: next(times))
    plain = manifest._git
    monkeypatch.setattr(manifest, "_git", lambda root, *rest: plain(root, *rest) if rest[0] == "rev-parse" else None)
    assert git_state(checkout)["changes"] != git_state(checkout)["changes"]
