#!/bin/sh
# byhand.sh MAP REDUCE FILE...: the job as one would run it without a cluster.
# The order is by key bytes, and equal keys keep the order of the input.
set -e
map=$1 reduce=$2
shift 2
export LC_ALL=C
for f in "$@"; do python3 "$map" <"$f"; done | sort -s -t "$(printf '\t')" -k1,1 | python3 "$reduce"
