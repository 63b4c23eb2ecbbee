#!/usr/bin/env bash
# Runs a NameNode and DataNodes of Apache HDFS in one JVM, on addresses of this network
# namespace, until its standard input ends: hdfs.sh DIR NAMENODE DATANODE ... Machines
# that are emulated reach them by their default route; a JVM inside one would be 20
# times slower. Root, Java; the jars come from the test bed's cache.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=$(mkdir -p "${1:?usage: hdfs.sh DIR NAMENODE DATANODE ...}" && cd "$1" && pwd)
shift
jars=$(ls -td "${DROVER_CACHE:-$root/.cache}"/hdfs-*/lib 2>/dev/null | head -1)
[ -n "$jars" ] || { echo "hdfs.sh: no jars of HDFS: go run ./integration/cmd/testbed hdfs -- true" >&2; exit 1; }
# Of its own: a test bed of another version removes this one from the cache.
rm -rf "$dir/program"
mkdir "$dir/program"
cp -alL "$(dirname "$jars")"/{lib,classes,conf} "$dir/program" 2>/dev/null || { rm -rf "$dir/program" && mkdir "$dir/program" && cp -aL "$(dirname "$jars")"/{lib,classes,conf} "$dir/program"; }
jars=$dir/program/lib entry=$dir/program
for ip in "$@"; do ip addr add "$ip/32" dev lo 2>/dev/null || true; done
rm -rf "$dir"/{name,data*,tmp,table}
k=0
for ip in "${@:2}"; do # the racks that the Vagrantfile gives the nodes
  k=$((k + 1))
  echo "$ip /r$((k / 3 + 1))" >>"$dir/table"
done
cd "$dir"
# Heartbeats of a second: a DataNode is dead after 14 s.
exec java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$jars/*:$entry/classes:$entry/conf" \
  HdfsHost "$dir" "$dir/table" "$1" 1000 2000 "${@:2}" 2>"$dir/hdfs.log"
