from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]


def test_generated_messages_are_those_of_the_proto_file(tmp_path: Path) -> None:
    well_known = resources.files("grpc_tools") / "_proto"
    arguments = [f"-I{ROOT / 'proto'}", f"-I{well_known}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main(["protoc", *arguments, *(str(path) for path in (ROOT / "proto").glob("*.proto"))]) == 0
    for name in ("tsunagi_pb2.py", "tsunagi_pb2.pyi", "sparkplug_b_pb2.py", "sparkplug_b_pb2.pyi"):
        fresh = (tmp_path / name).read_text(encoding="utf-8")
        stored = (ROOT / "services" / "tsunagi" / "runtime" / "messages" / name).read_text(encoding="utf-8")
        if fresh != stored:
            pytest.fail(f"{name} is not what proto/*.proto give; run `make proto`")


def test_package_names_every_message() -> None:
    from tsunagi.runtime import messages
    from tsunagi.runtime.messages import tsunagi_pb2

    declared = set(tsunagi_pb2.DESCRIPTOR.message_types_by_name)
    assert declared <= set(messages.__all__)
    assert len(messages.QUALITY_NAMES) == len(tsunagi_pb2.Quality.values())
    assert [name.upper() for name in messages.QUALITY_NAMES] == tsunagi_pb2.Quality.keys()
