"""python -m uringloop.testing ONE OTHER: compare two traces of loops for tests."""

import sys

from uringloop.testing import traces

if __name__ == "__main__":
    sys.exit(traces.main())
