"""Number of examples that Hypothesis draws for a test."""

from hypothesis import settings


def examples(nightly: int) -> int:
    """Return the number of examples for a test: `nightly` with the profile of that name, otherwise at most 50."""
    return nightly if settings.get_current_profile_name() == "nightly" else min(nightly, 50)
