"""Tests of the commands of the terminal."""
