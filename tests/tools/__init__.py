"""What `make test-all` installs, and what it runs outside this environment."""
