"""Pilots as jobs of a Slurm cluster, through submitit: ``hydra/launcher=slurm`` and ``python -m harness.queue``.

Nothing here schedules: the order of a comparison is kept by Slurm's dependencies, or by one job that runs its pilots
one after the other.
"""
