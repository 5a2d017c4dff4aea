"""The tools that `make test-nightly` installs, and the programs that it runs outside this environment."""
