"""Set before torch is imported, as in a worker: threads that wait sleep instead of spinning, for tests share cores."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
