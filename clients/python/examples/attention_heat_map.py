"""Write an HTML page with a heat map of every head of one layer, for a text of your own.

    python attention_heat_map.py "The fox ran home." --layer 0 --out attention.html

This needs a running server and `pip install 'lightwell-client[numpy]'`.
"""

import argparse
from pathlib import Path

from lightwell_client import Client, LightwellError


def main() -> None:
    """Ask for one layer and write its picture."""
    parser = argparse.ArgumentParser(description="Heat maps of one layer's attention.")
    parser.add_argument("text")
    parser.add_argument("--layer", type=int, default=0, help="negative counts from the end")
    parser.add_argument("--out", type=Path, default=Path("attention.html"))
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    arguments = parser.parse_args()
    try:
        with Client(arguments.base_url) as client:
            result = client.attention(arguments.text, layers=arguments.layer)
    except LightwellError as error:
        parser.exit(1, f"{error}\n")
    arguments.out.write_text(result.to_html(), encoding="utf-8")
    print(f"{len(result.heads)} heads over {len(result.tokens)} tokens: {arguments.out}")


if __name__ == "__main__":
    main()
