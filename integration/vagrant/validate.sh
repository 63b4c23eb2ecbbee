#!/usr/bin/env bash
# Has Vagrant evaluate the Vagrantfile for every provider and way to have a box and HDFS,
# without a machine: validate.sh DIST. VirtualBox need not be there: Vagrant asks its
# program for its version alone, and a stand-in answers.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
DROVER_DIST=$(cd "${1:?usage: validate.sh DIST}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,box,hadoop/lib,hadoop/conf}
touch "$work/box/box.key"
printf '#!/bin/sh\n[ "$*" = --version ] && echo 7.0.20r163906\n' >"$work/bin/VBoxManage"
chmod 755 "$work/bin/VBoxManage"
cd "$root"

way() { # WHAT NAME=VALUE ...: the environment of a user, and nothing else
  local what=$1
  shift
  env -i HOME="$work" PATH="$work/bin:$PATH" LC_ALL=C.UTF-8 VAGRANT_HOME="$work/home" VAGRANT_DOTFILE_PATH="$work/dot" VAGRANT_CHECKPOINT_DISABLE=1 \
    DROVER_DIST="$DROVER_DIST" "$@" vagrant validate --no-color >"$work/out" 2>&1 || { echo "FAILED: $what: $(cat "$work/out")" >&2; exit 1; }
  echo "ok: $what"
}
way "VirtualBox, public box" VAGRANT_DEFAULT_PROVIDER=virtualbox
way "libvirt, public box, 9 nodes with HDFS inside" VAGRANT_DEFAULT_PROVIDER=libvirt DROVER_NODES=9 DROVER_HDFS=inside DROVER_HADOOP="$work/hadoop"
way "libvirt, own box, emulated, HDFS beside" VAGRANT_DEFAULT_PROVIDER=libvirt DROVER_BOX_DIR="$work/box" DROVER_NAMENODE=10.88.0.10:8020 DROVER_DATANODE=10.88.0.21
way "libvirt, own box, KVM" VAGRANT_DEFAULT_PROVIDER=libvirt DROVER_BOX_DIR="$work/box" DROVER_DRIVER=kvm DROVER_HADOOP="$work/hadoop"
# What it must refuse.
(way "DROVER_NODES=0" VAGRANT_DEFAULT_PROVIDER=libvirt DROVER_NODES=0) 2>"$work/refused" && { echo "FAILED: 0 nodes are accepted" >&2; exit 1; }
grep -q '1 to 9 nodes are possible' "$work/refused" || { cat "$work/refused" >&2; exit 1; }
echo "ok: 0 nodes are refused"
# The machines' script installs the programs where any of them is missing, and only then.
sed -n '/^  for program in criu /,/^  }/p' Vagrantfile >"$work/programs"
[ -s "$work/programs" ] || { echo "FAILED: the Vagrantfile does not look for programs" >&2; exit 1; }
for lacks in criu containerd runc iptables nothing; do
  mkdir "$work/$lacks"
  for program in criu containerd runc iptables; do [ "$program" = "$lacks" ] || ln -s /bin/true "$work/$lacks/$program"; done
  printf '#!/bin/sh\necho apt-get >"%s"\n' "$work/$lacks/installed" >"$work/$lacks/apt-get"
  chmod 755 "$work/$lacks/apt-get"
  PATH="$work/$lacks" /bin/sh -eu "$work/programs"
  if [ "$lacks" = nothing ]; then want=""; else want=apt-get; fi
  [ "$(cat "$work/$lacks/installed" 2>/dev/null)" = "$want" ] || { echo "FAILED: of the programs $lacks is missing: want $want" >&2; exit 1; }
done
echo "ok: a missing program is installed"
