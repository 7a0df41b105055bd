"""The campaign, run from a checkout where schedsim is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sys.path[0] = str(root)
    import schedsim

    # The folders beside schedsim/ are its sub-packages once it is installed.
    schedsim.__path__.append(str(root))
    from schedsim.validation.campaigns.campaign import main

    sys.exit(main())
