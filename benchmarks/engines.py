"""Cost of certificates by model: `fragility bench` with its scaling part, as `make bench` runs it.

python benchmarks/engines.py [options of fragility bench]
"""

import sys

from fragility.cli import main

if __name__ == "__main__":
    main(["bench", *(sys.argv[1:] or ["--scaling"])])
