#!/bin/sh
# Puts faults into this node one after the other, and wants `drover doctor` to name each
# with a cure: faults.sh. Those that are beside the machine (a NameNode in safe mode)
# are not among them. Everything is mended again. Root, on a configured node.
set -u
bad=0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# fault CHECK BREAK MEND [DOCTOR ...]: the words of the last are the command to run.
fault() {
  name=$1 break=$2 mend=$3
  shift 3
  [ $# -gt 0 ] || set -- drover doctor -quick
  sh -c "$break" >"$dir/log" 2>&1 || { echo "FAILED: $name: cannot be broken: $(cat "$dir/log")"; bad=1; }
  "$@" >"$dir/out" 2>"$dir/err"
  code=$?
  sh -c "$mend" >"$dir/log" 2>&1 || { echo "FAILED: $name: cannot be mended: $(cat "$dir/log")"; bad=1; }
  found=$(grep -A1 -E "^(missing|degraded) +$name " "$dir/out")
  status=$(echo "$found" | cut -d' ' -f1 | head -1)
  if [ -z "$found" ] || ! echo "$found" | grep -q 'cure: .'; then
    echo "FAILED: $name: not named with a cure:"
    cat "$dir/out"
    bad=1
  elif [ "$status" = missing ] && [ $code -ne 1 ]; then
    echo "FAILED: $name: is missing, and the exit code is $code"
    bad=1
  else
    echo "$found" | sed 's/  */ /g'
  fi
}

systemctl stop drover-node # it would wait for containerd, and be lost with the clock
fault swap 'swapoff -a' 'swapon -a'
fault "cgroup v2" true true unshare -m sh -c 'mount -t tmpfs none /sys/fs/cgroup && drover doctor -quick'
fault containerd 'systemctl stop containerd' 'systemctl start containerd'
mkdir "$dir/bin"
printf '#!/bin/sh\necho "runc version 1.1.15"; echo "spec: 1.2.0"\n' >"$dir/bin/runc"
chmod 755 "$dir/bin/runc"
fault runc true true env "PATH=$dir/bin:$PATH" drover doctor -quick
free=$(df --output=avail -B1M /var/lib/drover | tail -1)
fault "disk space" "fallocate -l $((free - 100))M /var/lib/drover/fill" 'rm /var/lib/drover/fill'
fault clock 'date -s "+1 hour"' 'date -s "-1 hour"'
fault coordinator 'iptables -I OUTPUT -p tcp --dport 7100 -j DROP' 'iptables -D OUTPUT -p tcp --dport 7100 -j DROP'
drover tls ca -dir "$dir/other" >/dev/null && drover tls cert -dir "$dir/other" -kind node -host "$(hostname)" "$(hostname)" >/dev/null
sed -E "s|^tls_(cert\|key) .*||" /etc/drover/node.hcl >"$dir/node.hcl"
echo "tls_cert = \"$dir/other/$(hostname).pem\"" >>"$dir/node.hcl"
echo "tls_key = \"$dir/other/$(hostname).key\"" >>"$dir/node.hcl"
fault certificates true true drover doctor -quick -config "$dir/node.hcl"
criu=$(command -v criu)
fault criu "mv $criu $criu.away" "mv $criu.away $criu"
fault "port of node" true true sh -c 'sed "s/7101/22/" /etc/drover/node.hcl >'"$dir"'/port.hcl; drover doctor -quick -config '"$dir/port.hcl"
systemctl start drover-node
exit $bad
