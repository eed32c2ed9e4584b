"""From runs to tables, statistics and verdicts: ``python -m analysis compare | report | runs | selftest``.

The chain, one module each: ``sources`` finds runs, ``selection`` picks the two arms, ``gate`` refuses what may not be
compared, ``pairing`` makes pairs of runs, ``paired`` and ``curves`` are the statistics (pure, on arrays),
``comparison`` tells the story from top to bottom, ``wording`` says the result in plain words, ``report`` draws it.
"""
