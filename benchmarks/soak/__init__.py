"""A long, rough load on one server, with every request accounted for: `python -m benchmarks.soak` (`make soak`)."""
