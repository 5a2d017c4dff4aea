"""Search lines of text by meaning: embed them once, then list the nearest to each query.

    python embedding_search.py lines.txt "a clever animal" "a royal wedding"

This needs a running server and `pip install 'lightwell-client[numpy]'`.
"""

import argparse
from pathlib import Path

from lightwell_client import Client, LightwellError

LINES_A_REQUEST = 64


def main() -> None:
    """Embed every line, then rank them for each query by cosine similarity."""
    parser = argparse.ArgumentParser(description="Nearest lines of a file by meaning.")
    parser.add_argument("file", type=Path)
    parser.add_argument("query", nargs="+")
    parser.add_argument("--top", type=int, default=3)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    arguments = parser.parse_args()
    lines = [line.strip() for line in arguments.file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        parser.exit(1, f"{arguments.file} has no lines\n")
    try:
        with Client(arguments.base_url) as client:
            parts = [lines[start : start + LINES_A_REQUEST] for start in range(0, len(lines), LINES_A_REQUEST)]
            vectors = [vector for part in parts for vector in client.embed(part, pooling="mean").matrix]
            queries = client.embed(arguments.query, pooling="mean").matrix
    except LightwellError as error:
        parser.exit(1, f"{error}\n")
    for query, vector in zip(arguments.query, queries, strict=True):
        # The server scales vectors to length 1, so the product is the cosine.
        similarity = [float(vector @ other) for other in vectors]
        print(query)
        for place in sorted(range(len(lines)), key=lambda i: -similarity[i])[: arguments.top]:
            print(f"  {similarity[place]:.3f}  {lines[place]}")


if __name__ == "__main__":
    main()
