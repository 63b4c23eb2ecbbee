#!/usr/bin/env python3
"""Mapper: one line "word TAB 1" for each word of the input."""
import sys

for line in sys.stdin:
    for word in line.split():
        print(word, 1, sep="\t")
