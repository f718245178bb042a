"""A real client: submits work to the scheduler at ADDRESS and gathers it.

Usage: client.py ADDRESS LENGTH

Computes a sum on a worker, and transfers an array of LENGTH bytes in both directions.
Prints `ready` and the sum if all results are correct.
"""

import sys
import warnings

warnings.simplefilter("ignore")

import numpy
from distributed import Client


def main():
    address, length = sys.argv[1], int(sys.argv[2])
    with Client(address, timeout=30, set_as_default=False, direct_to_workers=False) as client:
        total = client.submit(sum, range(101)).result(timeout=60)
        array = numpy.arange(length // 8)
        doubled = client.submit(lambda x: x * 2, array).result(timeout=120)
        assert (doubled == array * 2).all()
    print(f"ready {total}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
