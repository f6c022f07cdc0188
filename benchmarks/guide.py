"""Writes the beginner's guide: docs/guide/*.md and docs/pictures/guide-*.svg.

    python benchmarks/guide.py                      # pages and pictures from the kept numbers
    python benchmarks/guide.py --numbers            # computes docs/results/guide.json anew before
    python benchmarks/guide.py --numbers forecasts  # only these of its parts
    python benchmarks/guide.py --numbers new        # only the forecasts and parts that are not kept yet

The text is in benchmarks/guidebook/templates; {{ expression }} stands for a number. The numbers come from
docs/results/guide.json and from the committed rows of the studies. A test holds the pages to both.
"""

from __future__ import annotations

import sys


def main(words: list[str]) -> None:
    if "--numbers" in words:
        from guidebook import numbers

        numbers.compute(lambda text: print(text, flush=True), tuple(words[words.index("--numbers") + 1 :]))
    from guidebook import pages

    for path, count in pages.write():
        print(f"{path}: {count} words")


if __name__ == "__main__":
    main(sys.argv[1:])
