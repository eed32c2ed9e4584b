"""What a plan makes of init=: found, compared, adopted or refused, and recorded (no torch)."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest

from harness.attempts import Opened, note_start
from harness.checks import initial_weights
from harness.data import DataConfig
from harness.identity import Identity, check_identity, mismatches
from harness.logs import Event
from harness.manifest import make_manifest
from harness.paths import load_path as read_path
from harness.plan import ConfigError, Plan, make_plan
from harness.preflight import describe_weights, refuse_impossible
from harness.recorder import Recorder
from harness.rundir import RunDir
from harness.schema import InitConfig, PilotConfig, PlatformConfig, TrainConfig
from harness.shapes import ModelShape
from tests.weights.checkpoints import write_config, write_sparse
from tests.weights.test_old_checkpoints import plant

load_path = functools.cache(read_path)
CPU = PlatformConfig(name="cpu", device="cpu")
TRN2 = PlatformConfig(name="trn2_48xlarge", device="neuron", chip="trn2", num_ranks=64, num_chips=16, lnc=2)


def plan(tmp_path: Path, path: str = "native_4b", platform: PlatformConfig = CPU, **fields: object) -> Plan:
    train = TrainConfig(flags=fields.pop("flags", []), steps=fields.pop("steps", 10))
    return make_plan(
        PilotConfig(
            path=load_path(path),
            platform=platform,
            data=DataConfig(name="auto", kind="auto"),
            runs=str(tmp_path / "runs"),
            train=train,
            **fields,
        )
    )


def pretrained(place: Path | str, **fields: object) -> InitConfig:
    return InitConfig(mode="pretrained", path=str(place), **fields)


def narrow(path: str = "native_4b", **changes: object) -> ModelShape:
    return replace(load_path(path).rehearsal_shape(), **changes)


def test_random_says_so(tmp_path: Path) -> None:
    made = plan(tmp_path)
    assert made.initial.describe() == "random weights from seed 1: nothing is loaded"
    assert describe_weights(made).text == made.initial.describe()


@pytest.mark.parametrize("path", ["hf_4b", "native_4b", "moe_nki"])
def test_weights_that_fit(tmp_path: Path, path: str) -> None:
    place = write_sparse(tmp_path / "weights", narrow(path))
    made = plan(tmp_path, path, init=pretrained(place))
    refuse_impossible(made)
    assert made.initial.directory == place
    assert made.config.init.adopted == {}
    assert made.initial.describe() == f"weights from {place}"
    assert "config.json and all keys fit, stored in bfloat16" in describe_weights(made).text


def test_a_relative_path_and_a_tokenizer_beside_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = write_sparse(tmp_path / "weights", narrow())
    monkeypatch.chdir(tmp_path)
    made = plan(tmp_path, init=pretrained("weights"))
    assert (made.initial.place, made.config.data.tokenizer) == (str(place), None)
    (place / "tokenizer.json").write_text("{}")
    assert plan(tmp_path, init=pretrained("weights")).config.data.tokenizer == str(place)


def test_a_difference_names_both_values_and_what_to_type(tmp_path: Path) -> None:
    place = write_sparse(tmp_path / "weights", narrow(rope_theta=5e6))
    with pytest.raises(ConfigError) as error:
        plan(tmp_path, init=pretrained(place))
    first, second = str(error.value).splitlines()
    assert first == (
        f"init.path={place} does not fit path=native_4b: rope_theta is 5000000.0 in config.json, 1000000.0 in the model"
    )
    assert second.endswith("init.adopt_config=true")


def test_adopted_values_are_built_and_recorded(tmp_path: Path) -> None:
    place = write_sparse(tmp_path / "weights", narrow(rope_theta=5e6, num_layers=2))
    made = plan(tmp_path, init=pretrained(place, adopt_config=True))
    assert made.shape == narrow(rope_theta=5e6, num_layers=2)
    refuse_impossible(made)
    assert made.config.init.adopted == {"num_hidden_layers": 2, "rope_theta": 5e6}
    assert made.initial.describe() == (
        f"weights from {place}; adopted from its config.json: num_hidden_layers 2 (path: 36), "
        "rope_theta 5000000.0 (path: 1000000.0)"
    )
    record = make_manifest(made, run_name="", command=[], env={}, argv=[])["init"]
    assert record["adopted"]["rope_theta"] == {"file": 5e6, "path": 1e6}
    assert len(record["config_sha256"]) == 64
    assert made.swaps.layers == plan(tmp_path).swaps.layers == ()


def test_adoption_is_an_event(tmp_path: Path) -> None:
    place = write_sparse(tmp_path / "weights", narrow(rope_theta=5e6))
    for number, init in enumerate((pretrained(place, adopt_config=True), InitConfig())):
        run = RunDir(tmp_path / str(number))
        run.path.mkdir()
        made, recorder = plan(tmp_path, init=init), Recorder(run)
        note_start(recorder, made, Opened(run=run, initial=made.initial))
        recorder.close()
        found = [(event["kind"], event["data"]) for event in run.events()]
        values = {"rope_theta": {"file": 5e6, "path": 1e6}}
        assert found == ([("config_adopted", {"directory": str(place), "values": values})] if number == 0 else [])


def test_keys_that_do_not_fit_what_was_adopted_are_refused_all_the_same(tmp_path: Path) -> None:
    place = write_sparse(tmp_path / "weights", narrow())
    write_config(place, narrow(num_layers=35))
    with pytest.raises(ConfigError, match="11 extra: model.layers.35"):
        refuse_impossible(plan(tmp_path, init=pretrained(place, adopt_config=True)))


def test_full_weights_in_a_rehearsal(tmp_path: Path) -> None:
    place = write_sparse(tmp_path / "weights", load_path("native_4b").full_shape())
    with pytest.raises(ConfigError, match="weights of the full model, and this is a rehearsal at narrow widths"):
        plan(tmp_path, init=pretrained(place))
    refuse_impossible(plan(tmp_path, platform=TRN2, init=pretrained(place)))


def test_what_cannot_be_adopted(tmp_path: Path) -> None:
    place = write_sparse(tmp_path / "weights", narrow())
    write_config(place, narrow(), attention_bias=True)
    for adopt in (False, True):
        with pytest.raises(ConfigError, match="attention_bias cannot be adopted: choose weights of the kind"):
            plan(tmp_path, init=pretrained(place, adopt_config=adopt))
    write_config(place, narrow(), vocab_size=None)
    with pytest.raises(ConfigError, match="vocab_size is None in config.json, 2048 in the model\n  these values are"):
        plan(tmp_path, init=pretrained(place, adopt_config=True))


def test_experts_where_a_dense_model_is_built(tmp_path: Path) -> None:
    place = write_sparse(tmp_path / "weights", narrow("moe_nki"))
    with pytest.raises(ConfigError, match="model_type is qwen3_moe in config.json, qwen3 in the model"):
        plan(tmp_path, init=pretrained(place))


@pytest.mark.parametrize(
    ("init", "options", "message"),
    [
        (InitConfig(path="x"), [], "init=random does not load init.path=x: say init=pretrained"),
        (InitConfig(adopt_config=True), [], "init=random loads nothing that could be adopted"),
        (InitConfig(mode="pretrained"), [], "init=pretrained needs init.path="),
        (pretrained("no/such/place"), [], "init.path=no/such/place: no such directory, and no hub id"),
        (pretrained(__file__), [], f"init.path={__file__} is a file: name the directory that it lies in"),
        (pretrained("../up"), [], "no such directory, and no hub id"),
        (pretrained(".", revision="main"), [], "init.revision=main is for hub ids, but init.path=. is a directory"),
        (InitConfig(), ["--checkpoint.initial_load_path", "/x"], "loads weights: --checkpoint.initial_load_path /x"),
        (InitConfig(), ["--checkpoint.initial_load_in_hf"], "loads weights: --checkpoint.initial_load_in_hf"),
    ],
)  # fmt: skip
def test_contradictions(tmp_path: Path, init: InitConfig, options: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(tmp_path, init=init, flags=options)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) <= 2


def test_an_old_checkpoint_wins_over_nothing_unasked(tmp_path: Path) -> None:
    options = plant(tmp_path / "old", 5)
    place = write_sparse(tmp_path / "weights", narrow())
    for init in (InitConfig(), pretrained(place)):
        with pytest.raises(ConfigError, match=r"already holds checkpoints \(step 5\).* ignore init\n  resume=true"):
            plan(tmp_path, flags=options, init=init)
    made = plan(tmp_path, flags=options, resume=True)
    assert made.config.init.resumed_step == 5
    assert made.initial.describe() == f"resumed from step 5 in {tmp_path / 'old' / 'checkpoint'}"
    with pytest.raises(ConfigError, match="from step 5, but train.steps=5: nothing is left to train"):
        plan(tmp_path, flags=options, resume=True, steps=5)
    assert make_manifest(made, run_name="", command=[], env={}, argv=[])["init"]["resumed_step"] == 5


# -- what the log says was loaded -------------------------------------------------------------------------------------


def judged(made: Plan, *paths: str | None) -> str:
    return initial_weights(made, [Event(kind="checkpoint_load", line=1, data={"path": path}) for path in paths]).verdict


def test_the_log_is_held_against_what_was_asked(tmp_path: Path) -> None:
    place = write_sparse(tmp_path / "weights", narrow())
    options, old = plant(tmp_path / "old", 5), f"{tmp_path / 'old' / 'checkpoint'}/step-5"
    random, loaded = plan(tmp_path), plan(tmp_path, init=pretrained(place))
    resumed = plan(tmp_path, flags=options, resume=True)
    assert judged(random) == "pass"
    assert judged(random, old) == "fail"
    assert judged(loaded, str(place), f"{place}.") == "pass"
    assert judged(loaded, old) == "fail"
    assert judged(loaded) == "fail"
    assert judged(loaded, None) == "skipped"
    assert judged(resumed, old) == "pass"
    assert judged(resumed) == "fail"
    assert judged(resumed, str(place)) == "fail"
    assert judged(random, f"{Path(random.config.runs).resolve()}/x/dump/checkpoint/step-3") == "fail"


# -- the promise ------------------------------------------------------------------------------------------------------


def built(shape: ModelShape) -> Identity:
    values = {name: getattr(shape, name) for name in Identity.__dataclass_fields__ if hasattr(shape, name)}
    counts = {"total_params": shape.num_params(), "active_params": shape.num_params(active_only=True)}
    return Identity(**values, **counts, torch="", torchtitan="")


def test_the_promise_is_kept_but_for_what_was_adopted() -> None:
    path = load_path("native_4b")
    other = replace(path.full_shape(), rope_theta=5e6)
    assert mismatches(built(other), other, path, adopted=["rope_theta"]) == ()
    wide = replace(other, hidden=1024)
    assert "hidden is 1,024, promised 2,560" not in mismatches(built(wide), wide, path)  # no full scale any more
    assert mismatches(built(wide), wide, path, adopted=["rope_theta", "hidden"]) == ()
    smuggled = replace(built(other), hidden=1024)
    assert "hidden is 1,024, promised 2,560" in mismatches(smuggled, other, path, adopted=["rope_theta"])
    shallow = replace(other, num_layers=2)
    assert "num_layers is 2, promised 36" in mismatches(built(shallow), other, path, adopted=["rope_theta"])
    assert mismatches(built(shallow), shallow, path, adopted=["rope_theta", "num_layers"]) == ()


def test_the_reason_of_a_passed_identity_names_what_was_adopted(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    from harness import identity
    from harness.training import make_spec

    made = plan(tmp_path, init=pretrained(write_sparse(tmp_path / "w", narrow(rope_theta=5e6)), adopt_config=True))
    spec = make_spec(made, tmp_path, prepare=False)
    monkeypatch.setattr(identity, "build_identity", lambda spec, python: built(spec.shape))
    monkeypatch.setattr(identity, "_missing_packages", lambda python: None)
    check = check_identity(spec, made.config.path, adopted={"rope_theta": 5e6})
    assert check.verdict == "pass"
    assert check.reason.endswith(
        "not the path's promise, adopted from the weights' config.json: rope_theta 5000000.0 (path: 1000000.0)"
    )
