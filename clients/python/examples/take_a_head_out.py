"""Ablate each head of a model in turn and print how much less likely a token becomes.

    python take_a_head_out.py "Once upon a time there was a" " little"

Needs a running server and `pip install 'lightwell-client[numpy]'`.
"""

import argparse
import math
from collections.abc import Iterator

from lightwell_client import Client, LightwellError
from lightwell_client.interventions import Intervention, zero


def log_probability(client: Client, text: str, token: str, interventions: list[Intervention]) -> float:
    """Return the natural logarithm of the probability that `token` comes next."""
    lens = client.lens(text, layers=-1, positions=-1, target=token, interventions=interventions)
    return math.log(float(lens["target_probabilities"][-1, -1]))


def ablations(client: Client, text: str, token: str) -> Iterator[tuple[int, int, float]]:
    """Yield each (layer, head) with the change of the log-probability when its output is zero."""
    network = client.capabilities()
    clean = log_probability(client, text, token, [])
    for layer in range(network["num_layers"]):
        for head in range(network["num_heads"]):
            without = log_probability(client, text, token, [zero("attn.hook_z", layer=layer, head=head)])
            yield layer, head, without - clean


def main() -> None:
    """Print the heads that matter most, the most helpful first."""
    parser = argparse.ArgumentParser(description="Which heads make a token likely.")
    parser.add_argument("text")
    parser.add_argument("token", help="one token; many begin with a space")
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    arguments = parser.parse_args()
    try:
        with Client(arguments.base_url) as client:
            found = sorted(ablations(client, arguments.text, arguments.token), key=lambda one: one[2])
    except LightwellError as error:
        parser.exit(1, f"{error}\n")
    for layer, head, change in found[: arguments.top]:
        print(f"layer {layer}, head {head}: {change:+.3f}")


if __name__ == "__main__":
    main()
