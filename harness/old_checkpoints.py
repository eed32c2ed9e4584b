"""What already lies where torchtitan will look for checkpoints: it silently wins over any weights that are asked for.

torchtitan 0.3.0 (components/checkpointer/dcp.py, ``_load``): a folder with a valid checkpoint makes it ignore all
``initial_*`` options and resume from the highest step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from harness import flags
from harness.progress import printable

STEP = re.compile(r"step-(\d+)")
MARKS = (".metadata", "model.safetensors.index.json")
"""What makes a folder of a step valid in torchtitan's eyes."""


def checkpoint_folder(options: Sequence[str], dump: Path) -> Path | None:
    """Where torchtitan will look and save, absolute; None for a place that is no directory of this machine.

    Args:
        options: ``train.flags``, which win over the harness's own.
        dump: the run's own dump folder.
    """
    place = flags.value(options, "dump_folder") or str(dump)
    folder = flags.value(options, "checkpoint.folder") or "checkpoint"
    if "://" in place or "://" in folder:
        return None
    return Path(os.path.abspath(os.path.join(place, folder)))


def steps_in(folder: Path) -> list[int]:
    """Steps of the valid checkpoints in ``folder``, sorted, by torchtitan's own rule."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = [(match, folder / name) for name in names if (match := STEP.search(name))]
    return sorted(int(match[1]) for match, place in found if any((place / mark).is_file() for mark in MARKS))


def is_model_only(place: Path) -> bool:
    """Whether a step has no state of the data loader, without which torchtitan cannot go on from it.

    Its last step is saved so unless --checkpoint.no-last-save-model-only is given. The names of what a step holds stand
    in its metadata (a pickle, which is searched and not loaded).
    """
    try:
        return b"dataloader" not in (place / MARKS[0]).read_bytes()
    except OSError:  # safetensors only
        return True


def step_to_resume(options: Sequence[str], dump: Path, *, resume: bool) -> int | None:
    """The step that training goes on from; None for a training from the beginning.

    Raises:
        ValueError: there is an old checkpoint and ``resume`` is off, or the other way round.
    """
    folder = checkpoint_folder(options, dump)
    steps = steps_in(folder) if folder is not None else []
    if not steps and not resume:
        return None
    shown = printable(str(folder)) if folder is not None else "a place that is no directory of this machine"
    if not resume:
        listed = ", ".join(map(str, steps[-5:])) + (" and earlier ones" if len(steps) > 5 else "")
        raise ValueError(
            f"{shown} already holds checkpoints (step {listed}): training would go on from step {steps[-1]}, and "
            "ignore init\n  resume=true to do that, or another --dump_folder"
        )
    if not steps:
        raise ValueError(
            f"resume=true, but there is no checkpoint in {shown}\n"
            "  resume=true train.flags=[--checkpoint.enable,--dump_folder,DIR]  with DIR/checkpoint/step-N in it"
        )
    wanted = flags.value(options, "checkpoint.load_step") or "-1"
    step = steps[-1] if wanted == "-1" else int(wanted) if wanted.isdigit() else None
    if step not in steps:
        raise ValueError(f"--checkpoint.load_step={printable(wanted)}: {shown} holds step {', '.join(map(str, steps))}")
    if step and folder is not None and is_model_only(folder / f"step-{step}"):  # of step 0 it takes no more
        raise ValueError(
            f"resume=true, but step {step} in {shown} holds the model alone, as torchtitan saves its last step\n"
            "  resume an earlier one with --checkpoint.load_step, or save with --checkpoint.no-last-save-model-only"
        )
    return step


def go_on_from(folder: Path, *, before: int, attempt: int) -> tuple[int | None, list[str]]:
    """Where a job that was put back into the queue goes on, in the folder that its earlier attempts saved to.

    What torchtitan could not go on from is renamed out of its sight: the model alone, which is what it saves last, and
    a step after which nothing is left to train.

    Args:
        before: the number of steps to train.
        attempt: the one that has ended; part of the new names.

    Returns:
        the step, None to begin anew; and what was renamed, in words.
    """
    aside = []
    for step in reversed(steps_in(folder)):
        place = folder / f"step-{step}"
        if not place.is_dir():  # another name that torchtitan reads as a step: it will say what is wrong
            return step, aside
        alone = step > 0 and is_model_only(place)
        if not alone and step < before:
            return step, aside
        name = f"attempt-{attempt}-of-{step}"
        place.rename(folder / name)
        aside.append(f"step-{step} is now {name}: {'the model alone' if alone else 'nothing was left to train'}")
    return None, aside
