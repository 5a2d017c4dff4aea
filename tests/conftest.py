"""Set before torch is imported: threads that wait sleep instead of spinning, as in a worker, for tests share cores."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
