#!/usr/bin/env bash
# The package on machines with systemd, as an operator has it: test.sh DIST. Root.
#
# Makes a box, a libvirtd and an HDFS of its own, and the machines, and goes through the
# steps of steps.sh:
#
#   up mapreduce restart upgrade drain reboot doctor snapshot purge fresh down
#
# Without STEPS it does all of them, ends with none of its machines, and writes what was
# measured to docs/measured: vagrant.md, vagrant-bookworm.md, vagrant-hdfs.md, vagrant-upgrade.md. With
# STEPS="upgrade drain" it does these alone and leaves the machines as they are for the
# next call, until one has the step `down`.
#
#   FROM=COMMIT        the upgrade is one from the package of that commit, which the machines get first;
#                      a job runs while coordinator and nodes are of different versions
#   SUITE=trixie       Debian of the machines, by its name
#   DROVER_NODES=2     nodes beside the coordinator, at least 2
#   DROVER_MEMORY=768  MB of each machine
#   DROVER_HDFS=inside HDFS in the machines, which then want 1280 MB; only up, mapreduce and down
#   WORK=.cache/vagrant
#   RECORD=no          write no page
#
# Emulated it takes 15 to 20 minutes on an idle host of two cores, longer on a busy one.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
all="up mapreduce restart upgrade drain reboot doctor snapshot purge fresh down"
[ "${DROVER_HDFS:-}" != inside ] || all="up mapreduce down"
steps=${STEPS:-$all}
dist=$(cd "${1:?usage: test.sh DIST}" && pwd)
work=$(mkdir -p "${WORK:-$root/.cache/vagrant}" && cd "${WORK:-$root/.cache/vagrant}" && pwd)
export DROVER_DIST=$dist DROVER_BOX_DIR=$work/box DROVER_NODES=${DROVER_NODES:-2} DROVER_CPUS=${DROVER_CPUS:-1}
# A busy host stops an emulated machine for longer than the lease that metal has.
export DROVER_LEASE=${DROVER_LEASE:-3m} DROVER_HDFS=${DROVER_HDFS:-none}
if [ "$DROVER_HDFS" = inside ]; then
  export DROVER_MEMORY=${DROVER_MEMORY:-1280} BOX_PACKAGES=default-jre-headless
else
  export DROVER_NAMENODE=10.88.0.10:8020 DROVER_DATANODE=10.88.0.21
fi
export DROVER_MEMORY=${DROVER_MEMORY:-768} SUITE=${SUITE:-trixie}
page=vagrant command="make vagrant-test"
[ "$SUITE" = trixie ] || { page+=-$SUITE && command+=" SUITE=$SUITE"; }
[ -z "${FROM:-}" ] || { page+=-upgrade && command+=" FROM=$FROM"; }
[ "$DROVER_HDFS" != inside ] || { page+=-hdfs && command+=" DROVER_HDFS=inside"; }
export VAGRANT_DOTFILE_PATH=$work/dot DROVER_BEFORE=$here/listing.sh # not the state of a user's own machines
export VAGRANT_HOME=$work/libvirt/home VAGRANT_CHECKPOINT_DISABLE=1 VAGRANT_DEFAULT_PROVIDER=libvirt LIBVIRT_DEFAULT_URI=qemu:///system

for s in $steps; do
  case " $all " in *" $s "*) ;; *) echo "test.sh: STEPS: no step $s: $all" >&2; exit 2 ;; esac
done
[ "$DROVER_NODES" -ge 2 ] || { echo "test.sh: DROVER_NODES=$DROVER_NODES: a drain needs 2" >&2; exit 2; }
programs="vagrant virsh /usr/sbin/libvirtd dnsmasq qemu-img mmdebstrap busybox java curl python3"
packages="vagrant vagrant-libvirt libvirt-daemon-system libvirt-clients dnsmasq-base qemu-utils qemu-system-x86 mmdebstrap busybox-static default-jre-headless curl python3"
missing() { for p in $programs; do command -v "$p" >/dev/null || echo "$p"; done; }
if [ -n "$(missing)" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "test.sh: installing $packages"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
fi
[ -z "$(missing)" ] || { echo "test.sh: missing: $(missing | xargs); apt-get install --no-install-recommends $packages" >&2; exit 1; }

if [ -n "${FROM:-}" ]; then
  case " $steps " in *" up "*)
    rm -rf "$work/from"
    git clone -q --shared "$root" "$work/from/source"
    git -C "$work/from/source" checkout -q --detach "$FROM"
    "$work/from/source/dist/build.sh" "$work/from/dist" amd64 >/dev/null
    ;;
  esac
  DROVER_PACKAGE=$(ls "$work"/from/dist/drover_*_amd64.deb)
  export DROVER_PACKAGE
fi

# libvirtd, HDFS and the machines live in namespaces whose first process is a child of
# the process in this file. They outlive this script where STEPS are named.
session=$work/session.pid
inside() { # COMMAND ARG ...: in those namespaces
  local outer first
  outer=$(cat "$session")
  first=$(tr -d ' ' <"/proc/$outer/task/$outer/children")
  nsenter -t "$first" --net --mount --pid -- "$@"
}
lives() { [ -s "$session" ] && tr '\0' ' ' 2>/dev/null <"/proc/$(cat "$session")/cmdline" | grep -qF "$here/libvirt.sh"; }
end_session() {
  if lives; then
    kill -KILL "$(cat "$session")"
    while lives; do sleep 0.1; done
  fi
  rm -rf "$session" "$work/dot" "$work/hdfs" "$work"/hdfs.in "$work"/libvirt/lib/images/*_[cn][1-9].img
}
begin_session() {
  local datanodes
  "$here/validate.sh" "$dist"
  "$here/box.sh" "$DROVER_BOX_DIR"
  (cd "$root" && go run ./integration/cmd/testbed hdfs -- true) # its jars, into the cache
  rm -f "$work/dot/drover-tls/hdfs.tar.gz"
  mapfile -t datanodes < <(seq -f '10.88.0.%.0f' 21 $((20 + DROVER_NODES)))
  rm -f "$work/hdfs.in"
  mkfifo "$work/hdfs.in"
  # HDFS holds both ends of the pipe that rules it, so that it does not end with us.
  setsid "$here/libvirt.sh" "$work/libvirt" "$here/hdfs.sh" "$work/hdfs" 10.88.0.10 "${datanodes[@]}" <>"$work/hdfs.in" >"$work/hdfs.out" 2>"$work/session.log" &
  echo $! >"$session"
  disown # its end is no news
  for _ in $(seq 900); do
    grep -q '^ok ready' "$work/hdfs.out" && return
    lives || break
    sleep 0.2
  done
  echo "test.sh: HDFS and libvirtd do not start:" >&2
  tail -5 "$work/session.log" "$work/hdfs/hdfs.log" >&2
  end_session
  exit 1
}

[ -n "${STEPS:-}" ] || trap end_session EXIT # of a whole run nothing is left, however it ends
case " $steps " in
*" up "*) end_session; begin_session ;;
*) lives || { echo "test.sh: no machines run: STEPS=up first" >&2; exit 1; } ;;
esac
rm -f "$work/failed"
inside "$here/steps.sh" "$root" "$work" "$steps" || touch "$work/failed"
case " $steps " in
*" down "*)
  end_session
  failed=
  [ ! -e "$work/failed" ] || failed=-failed
  [ "${RECORD:-}" = no ] || (cd "$root" && go run ./integration/cmd/record -part "$page" -command "$command" $failed "docs/measured/$page.md" <"$work/results")
  ;;
esac
[ ! -e "$work/failed" ]
