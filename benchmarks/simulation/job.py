"""One request on its way through a simulated worker. It knows counts of tokens, and when they came."""

from benchmarks.simulation.workload import Arrival


class Job:
    """A request in a simulated worker; see the module. `uid` is its place in the order of arrival: first come, first
    served.

    While it decodes, its worker counts for it: then `num_tokens` and `num_computed` are those of when it began to.
    """

    __slots__ = (
        "arrival",
        "arrived_at",
        "ended_at",
        "epoch",
        "failure",
        "first_token_at",
        "group",
        "last_token_at",
        "max_computed",
        "names",
        "num_cached",
        "num_computed",
        "num_expected",
        "num_generated",
        "num_preemptions",
        "num_prefix_blocks",
        "num_prompt",
        "num_tokens",
        "offset",
        "output",
        "table",
        "uid",
    )

    def __init__(self, uid: int, arrival: Arrival, block_size: int) -> None:
        self.uid = uid
        self.arrival = arrival
        self.arrived_at = arrival.at
        self.num_prompt = arrival.prompt_tokens
        self.output = arrival.output_tokens
        self.max_computed = self.num_prompt + (arrival.max_tokens or self.output) - 1
        self.group = arrival.group
        self.num_prefix_blocks = arrival.prefix_tokens // block_size if arrival.group >= 0 else 0
        self.num_tokens = self.num_prompt  # prompt and generated ones
        self.num_computed = 0
        self.num_generated = 0
        self.num_cached = -1  # prompt tokens found in the cache when it first ran; -1 before
        self.num_expected = 0  # prompt tokens that its router took to be in its worker's cache
        self.num_preemptions = 0
        self.offset = 0  # while it decodes: the worker's count of steps when it had generated nothing
        self.epoch = 0  # how often it began or ceased to decode: older notes of its end are void
        self.names: list[int] = []  # of the blocks of its prefix that it shares
        self.table = 0  # blocks that it was admitted with
        self.first_token_at = -1.0
        self.last_token_at = -1.0
        self.ended_at = -1.0
        self.failure = ""  # why it had no answer

    @property
    def num_left(self) -> int:
        """Return the number of tokens that are known and not computed."""
        return self.num_tokens - self.num_computed
