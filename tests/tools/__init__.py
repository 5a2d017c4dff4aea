"""What `make test-all` installs, and what it runs elsewhere than here."""
