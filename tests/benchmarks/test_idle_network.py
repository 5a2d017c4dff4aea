"""An engine with a network that computes nothing runs steps as on a card: started ahead, in graphs, a token for each
sequence.
"""

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from benchmarks.gpu import idle_network
from lightwell.server.engine.execution.cuda_graphs import StepGraphs
from lightwell.server.engine.execution.run_ahead import RunAhead


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9}])
def test_every_measured_step_is_a_graph_that_was_started_ahead(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, ahead = [], []
    pack, go_on = StepGraphs.packing, RunAhead.go_on

    def count_packing(graphs: StepGraphs, *arguments: Any) -> Any:
        found = pack(graphs, *arguments)
        packed.append(found is not None)
        return found

    def count_ahead(steps: RunAhead, result: Any) -> None:
        ahead.append(steps.is_running)
        go_on(steps, result)

    monkeypatch.setattr(StepGraphs, "packing", count_packing)
    monkeypatch.setattr(RunAhead, "go_on", count_ahead)
    times = idle_network.step_seconds(3, options, num_keys=40)
    assert times == sorted(times)
    assert times[0] > 0
    assert len(times) < sum(packed)
    assert all(packed[-len(times) :])
    assert all(ahead[-len(times) :])
