"""Holds ways to choose a worker that the server does not use, to measure what its own is worth.

Each stands in for `server.dispatch.routing.Router.route`.
"""

import random
from collections.abc import Callable, Sequence

from server.dispatch.routing import Candidate, Route, RoutedPrompt, Router

Policy = Callable[[Router, Sequence[Candidate], RoutedPrompt], Route]

_own = Router.route
_draw = random.Random(0)


def least_loaded(router: Router, candidates: Sequence[Candidate], prompt: RoutedPrompt) -> Route:
    """Choose as the server does, without the prefixes: none is expected on any worker."""
    return _own(router, candidates, RoutedPrompt(prompt.token_ids, prompt.encoder_token_ids, takes=False, leaves=False))


def fewest_requests(router: Router, candidates: Sequence[Candidate], prompt: RoutedPrompt) -> Route:
    """Choose the worker with the fewest unfinished requests, as many proxies do."""
    return Route(min(candidates, key=lambda each: (each.num_requests, each.worker_id)).worker_id, 0)


def any_worker(router: Router, candidates: Sequence[Candidate], prompt: RoutedPrompt) -> Route:
    """Choose a worker at random."""
    return Route(_draw.choice(candidates).worker_id, 0)


POLICIES: dict[str, Policy] = {
    "prefix": _own,
    "least-loaded": least_loaded,
    "fewest-requests": fewest_requests,
    "random": any_worker,
}
