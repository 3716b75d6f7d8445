"""One process that believes it has joined others; what the others say is played."""

import json

from integrand.data.processes import JoinedProcesses


class Service:
    """In place of JAX's coordination service: values that processes have set; `said` is the first of each of them."""

    def __init__(self, said=()):
        self.values = {f"integrand/gather/1/{rank}": json.dumps(value) for rank, value in enumerate(said)}

    def key_value_set(self, key, value):
        self.values[key] = value

    def blocking_key_value_get(self, key, milliseconds):
        if key not in self.values:
            raise RuntimeError(f"DEADLINE_EXCEEDED: {key} timed out")
        return self.values[key]

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.values.items() if key.startswith(prefix)]


class Echo(Service):
    """All others say what this process says."""

    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def blocking_key_value_get(self, key, milliseconds):
        return self.values[f"{key.rpartition('/')[0]}/{self.rank}"]


def processes(rank, said=(), timeout=0.5):
    """One of two."""
    return JoinedProcesses(rank, 2, timeout, Service(said))


def agreeing(rank, size):
    """One of several that all have the same to say."""
    return JoinedProcesses(rank, size, 0.5, Echo(rank))
