"""Set before torch is imported, as in a worker: threads that wait sleep instead of spinning, for tests share cores; and
oneDNN keeps to kernels whose rows do not depend on the batch (`model.layers.linear.keep_rows_alike`), whoever calls it
first."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
