#!/usr/bin/env python3
"""Reducer, also fit as combiner: adds up the numbers of each word.

The lines of one word follow each other.
"""
import sys

current, total = None, 0
for line in sys.stdin:
    word, _, number = line.rstrip("\n").partition("\t")
    if word != current:
        if current is not None:
            print(current, total, sep="\t")
        current, total = word, 0
    total += int(number)
if current is not None:
    print(current, total, sep="\t")
