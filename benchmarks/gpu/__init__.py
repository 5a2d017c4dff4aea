"""Checks and measurements on one CUDA GPU: correct numbers, and speed compared with the card's limits and
`transformers`.

`python -m benchmarks.gpu --out DIR` needs only torch (2.11 or later) and transformers, no network, and takes under ten
minutes. It writes results.json and table.md to DIR. The networks have random weights, generated at the start.
"""
