"""Code that several folders of tests and benchmarks share: processes, browsers, metrics, models."""
