"""What the server relies on inside LitServe. It is pinned; a new version must pass this before the pin moves."""

import inspect
from importlib.metadata import version

import litserve as ls
from litserve.loops import inference_worker


def test_the_version_is_the_one_the_rest_was_proved_with() -> None:
    assert version("litserve") == "0.2.19"


def test_one_worker_can_be_launched_by_number() -> None:
    parameters = inspect.signature(ls.LitServer.launch_single_inference_worker).parameters
    assert list(parameters) == ["self", "lit_api", "worker_id"]
    source = inspect.getsource(ls.LitServer.launch_single_inference_worker)
    for name in ("workers_setup_status", "_transport", "_callback_runner", "restart_workers", "_get_request_queue"):
        assert f"self.{name}" in source


def test_a_worker_sets_the_api_up_and_then_calls_the_loop() -> None:
    parameters = list(inspect.signature(inference_worker).parameters)
    assert parameters[:3] == ["lit_api", "device", "worker_id"]
    source = inspect.getsource(inference_worker)
    assert source.index('os.environ["LITSERVE_WORKER_ID"]') < source.index("lit_api.setup(device)")
    assert source.index("lit_api.setup(device)") < source.index("    loop(\n        lit_api,\n        device,\n")
