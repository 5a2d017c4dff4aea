"""The list of planted faults fits the source."""

import json
from pathlib import Path

from tests.source_tree import ROOT


def test_the_text_of_each_fault_occurs_once_in_its_file() -> None:
    faults = json.loads(Path(__file__).with_name("faults.json").read_text(encoding="utf-8"))
    assert faults
    counts = {each["id"]: (ROOT / each["file"]).read_text(encoding="utf-8").count(each["old"]) for each in faults}
    assert {name: count for name, count in counts.items() if count != 1} == {}
