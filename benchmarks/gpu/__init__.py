"""Measures what one CUDA GPU gives: our numbers checked on it, and our speed compared with the card's own limits and
`transformers`.

`python -m benchmarks.gpu --out DIR` needs torch (2.11 or later) and transformers alone, no network, and under ten
minutes; it leaves results.json and table.md in DIR. Networks have random weights, made on the spot.
"""
