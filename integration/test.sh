#!/usr/bin/env bash
# The suites and jobs on real machines: what `make test` runs after `make
# check`. Needs root and what `make deps` installs. DROVER_SOAK=1 runs the long
# variants. Output of each part lies in out/test/.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
out=out/test
rm -rf "$out" && mkdir -p "$out" bin
failed=()
go build -o bin/bed ./integration/cmd/bed || exit 1
bin/bed build || exit 1

part() { # part NAME COMMAND...: runs it, shows its closing lines, keeps the rest
  local name=$1 start=$SECONDS code=0; shift
  echo "== $name"
  "$@" >"$out/$name.log" 2>&1 || code=$?
  if [ $code -ne 0 ]; then # an emulated machine dies now and then: once more, and say so
    grep -hE '^ *--- FAIL|panic' "$out/$name.log" | head -20
    mv "$out/$name.log" "$out/$name.first.txt"
    echo "   $name failed with code $code after $((SECONDS - start)) s (see $out/$name.first.txt); once more"
    code=0
    "$@" >"$out/$name.log" 2>&1 || code=$?
  fi
  grep -hE '^(ok|FAIL|---|panic:|bed: )|    --- FAIL' "$out/$name.log" | grep -vE '^--- (PASS|SKIP)' | tail -40
  echo "   $name: exit code $code after $((SECONDS - start)) s"
  if [ $code -ne 0 ]; then failed+=("$name"); echo "   the last lines of $out/$name.log:"; tail -60 "$out/$name.log"; fi
}

compile() { # compile NAME PACKAGE: a test binary, since machines have no Go
  go test -c -o "$out/$1.test" "$2"
}

compile e2e ./integration/e2e || exit 1

# 1. A real Apache HDFS: the client's suite, with daemons stopped and started.
part hdfs bin/bed hdfs -- go test -timeout 10m -v ./hdfs/...

# 2. One machine: cgroups, containerd, quotas and the node daemon in containers.
part machine bin/bed run -nodes 1 -mem 1024 -- go test -p 1 -timeout 30m -v -run '^TestOnMachine$' ./cgroups ./runtime/containerd ./internal/quota ./node

# 3. The bed itself: three machines, HDFS, faults, and nothing left behind.
part bed bin/bed run -nodes 3 -hdfs -- go test -timeout 10m -v ./integration/bed
part bed-end env DROVER_TEST_BED=1 go test -timeout 10m -v ./integration/cmd/bed

# 4. Jobs on a cluster, and what happens when parts of it fail.
part e2e bin/bed run -nodes 3 -mem 1024 -hdfs -- sh -c "cd integration/e2e && ../../$out/e2e.test -test.v -test.timeout 40m -drover ../../bin/drover"

echo "== skipped, with the reason"
grep -hA2 -E '^ *--- SKIP' "$out"/*.log | grep -vE '^--$' | sort | uniq -c | sort -rn | head -40
passed=$(cat "$out"/*.log | grep -cE '^ *--- PASS')
skipped=$(cat "$out"/*.log | grep -cE '^ *--- SKIP')
broken=$(cat "$out"/*.log | grep -cE '^ *--- FAIL')
echo "$passed passed, $broken failed, $skipped skipped"
if [ ${#failed[@]} -gt 0 ]; then echo "FAILED: ${failed[*]}"; exit 1; fi
