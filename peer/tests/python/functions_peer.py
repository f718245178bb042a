"""What Python says to expressions.

Usage: functions_peer.py

Answers `{"op": "evaluate", "expressions": [text]}` with `{"results": [text]}`:
the `repr` of each, or the class of its exception after an exclamation mark.
"""

import math
import operator
import sys

from exchange import serve

names = {"math": math, "operator": operator, "nan": math.nan, "inf": math.inf}


def evaluate(expression):
    try:
        return repr(eval(expression, names))
    except Exception as error:
        return f"!{type(error).__name__}"


serve(
    f"{sys.version_info[0]}.{sys.version_info[1]}",
    {"evaluate": lambda question, data: {"results": list(map(evaluate, question["expressions"]))}},
)
