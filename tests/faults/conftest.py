"""What fault tests share: tokenizer and corpus made once."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def prepared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer and corpus of a rehearsal, to copy into fresh directories of runs."""
    from harness.data import DataConfig, resolve
    from harness.titan.assets import prepare_data
    from tests.conftest import ROOT

    cache = tmp_path_factory.mktemp("cache") / ".cache"
    prepare_data(resolve(DataConfig(), base=ROOT), cache=cache, vocab=2048)
    assert any(cache.iterdir())
    return cache
