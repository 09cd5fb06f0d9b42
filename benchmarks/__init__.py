"""gradvet beside torch's own checker, measured side by side in one run.

One thread, set before torch is imported: small tensors gain nothing from more, and CPU time stays comparable.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
