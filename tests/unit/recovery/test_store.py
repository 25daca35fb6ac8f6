import hashlib
import struct
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.recovery.literal import random_joint
from tsunagi.recovery.errors import ModelError
from tsunagi.recovery.model import Model
from tsunagi.recovery.store import load_from_store, publish, store_path


@pytest.fixture
def model():
    mean, joint = random_joint(4, np.random.default_rng(1))
    made = Model.from_joint(mean, joint, ["a", "ö", "c,d", "e"])
    return replace(made, calibration=((0.5, 1.0), (0.9, 1.25)), about={"rows": [0, 200], "units": ["km/h"] * 4})


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "some.model"
    model.save(path)
    return path


def assert_equal(first: Model, second: Model) -> None:
    assert (first.names, first.calibration) == (second.names, second.calibration)
    assert dict(first.about) == dict(second.about)
    for key in ("mean", "scale", "transition", "Q", "prior", "drift"):
        np.testing.assert_array_equal(getattr(first, key), getattr(second, key), err_msg=key)


def test_a_file_gives_the_same_model(model, file):
    assert_equal(Model.load(file), model)
    assert Model.load(file).to_bytes() == file.read_bytes()


def test_a_diagonal_transition_stays_one(tmp_path):
    prior = np.eye(2)
    model = Model(("a", "b"), np.zeros(2), np.ones(2), np.array([0.5, 0.9]), 0.2 * prior, prior, np.zeros(2))
    model.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").diagonal


def test_identity_is_the_files_digest(model, tmp_path):
    path = tmp_path / "deep" / "er" / "m"
    digest = model.save(path)
    assert digest == model.identity == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [item.name for item in path.parent.iterdir()] == ["m"], "no temporary file is left"


def test_every_damaged_byte_is_found(file):
    data = file.read_bytes()
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        file.write_bytes(damaged)
        with pytest.raises(ModelError, match=r"some\.model: "):
            Model.load(file)


def test_every_truncation_is_found(file):
    data = file.read_bytes()
    for size in [0, 1, 15, 40, 55, 56, 57, 200, *range(300, len(data), 97), len(data) - 1]:
        file.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"some\.model: .*(cut off|not match)"):
            Model.load(file)
    file.write_bytes(data + b"\0")
    with pytest.raises(ModelError, match="appended to"):
        Model.load(file)


def test_other_version_and_other_files(file):
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, 16, 5)
    file.write_bytes(data)
    with pytest.raises(ModelError, match=r"some\.model: model file version 5, expected 1 to 4"):
        Model.load(file)
    file.write_bytes(b"PK\x03\x04" + b"x" * 500)
    with pytest.raises(ModelError, match="not a model file: starts with b'PK"):
        Model.load(file)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ModelError, match="nothing: no such model file"):
        Model.load(tmp_path / "nothing")
    with pytest.raises(ModelError, match="cannot be read: Is a directory"):
        Model.load(tmp_path)


def test_published_models_are_found_by_their_digest(model, file, tmp_path):
    store = tmp_path / "store"
    digest, model = publish(file, store)
    assert model.identity == digest
    assert publish(file, store)[0] == digest
    assert [item.name for item in store.iterdir()] == [f"{digest}.model"]
    assert_equal(load_from_store(store, digest), model)


def test_a_damaged_copy_is_found_and_replaced(file, tmp_path):
    digest, _ = publish(file, tmp_path / "store")
    copy = store_path(tmp_path / "store", digest)
    copy.write_bytes(copy.read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"\.model: damaged: found SHA-256"):
        load_from_store(tmp_path / "store", digest)
    publish(file, tmp_path / "store")
    load_from_store(tmp_path / "store", digest)


def test_only_good_models_are_published(file, tmp_path):
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match="cut off"):
        publish(file, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_unknown_and_malformed_names(tmp_path):
    with pytest.raises(ModelError, match="no such model file"):
        load_from_store(tmp_path, "0" * 64)
    for name in ("", "../../etc/passwd", "A" * 64, "0" * 63):
        with pytest.raises(ModelError, match="expected a SHA-256"):
            load_from_store(tmp_path, name)
