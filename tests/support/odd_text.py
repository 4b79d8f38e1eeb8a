"""Characters that texts go wrong by: what JSON escapes, what ends lines, what takes several bytes.

Drawn from these a test needs no table of all of Unicode, which takes long to make on a busy machine.
"""

from __future__ import annotations

from typing import Final

ODD: Final = "aZ09 _-.\"\\/{}[]:,'\n\r\t\x00\x1f\x7f\x85\xa0é€\u2028\ufeff\ud7ff\uffff\U0001f600"
