"""What `make test-nightly` installs, and what it runs outside this environment."""
