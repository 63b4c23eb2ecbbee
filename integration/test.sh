#!/usr/bin/env bash
# The suites and jobs on machines: what `make test` runs after `make check`.
# Needs root and the packages of `make deps`. DROVER_SOAK=1 runs the long
# variants. The output of each part is in out/test/.
set -uo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0
out=out/test
rm -rf "$out" && mkdir -p "$out" bin
failed=()
# All parts together end within the budget (DROVER_TEST_MINUTES), also on a slow
# machine: a part has at most the time left, and fails if there is none.
budget=$((60 * ${DROVER_TEST_MINUTES:-72})) longest=70m
[ -n "${DROVER_SOAK:-}" ] && budget=$((60 * 60 * 12)) longest=12h
running=
unset TESTS # the caller's value would skip tests
trap summary EXIT
trap 'exit 130' INT TERM

# part NAME MINUTES COMMAND... runs a part, prints its results and keeps its log.
part() {
  local name=$1 most=$((60 * $2)) start=$SECONDS code=0 left took missing; shift 2
  [ -n "${DROVER_SOAK:-}" ] && most=$budget
  left=$((budget - SECONDS))
  if [ $left -lt 60 ]; then
    echo "== $name: not run: the budget of $((budget / 60)) minutes is used up (DROVER_TEST_MINUTES)"
    failed+=("$name (no time left)")
    return
  fi
  echo "== $name"
  running=$name
  timeout --foreground -k 60 $((left < most ? left : most)) "$@" >"$out/$name.log" 2>&1 || code=$?
  took=$((SECONDS - start)) left=$((budget - SECONDS))
  if [ $code -ne 0 ] && [ $code -ne 124 ] && [ $left -gt 120 ]; then # emulated machines die now and then: report it and retry once
    grep -hE '^ *--- FAIL|panic' "$out/$name.log" | head -20
    mv "$out/$name.log" "$out/$name.first.txt"
    missing=$(unproved "$name")
    echo "   $name failed with code $code after $took s (see $out/$name.first.txt); retrying: ${missing:-all of it}"
    code=0
    timeout --foreground -k 60 $((left < most ? left : most)) env TESTS="${missing:-.}" "$@" >"$out/$name.log" 2>&1 || code=$?
    grep -hE '^--- PASS' "$out/$name.first.txt" >>"$out/$name.log"
  fi
  running=
  grep -hE '^(ok|FAIL|---|panic:|testbed: )|    --- FAIL' "$out/$name.log" | grep -vE '^--- (PASS|SKIP)' | tail -40
  echo "   $name: exit code $code after $((SECONDS - start)) s"
  [ $code -eq 0 ] && return
  failed+=("$name")
  [ $code -eq 124 ] && echo "   timed out; running tests: $(underway "$out/$name.log")"
  echo "   the last lines of $out/$name.log:"
  tail -60 "$out/$name.log"
}

# unproved NAME prints the tests of NAME.test that did not pass the first time, as a
# regular expression; no output means all.
unproved() {
  [ -x "$out/$1.test" ] || return
  "$out/$1.test" -test.list . | grep '^Test' | grep -vxFf <(awk '/^--- (PASS|SKIP)/ { print $3 }' "$out/$1.first.txt") |
    paste -sd'|' | sed -n 's/..*/^(&)$/p'
}

# underway LOG prints the tests that began and did not end.
underway() {
  awk '/^=== RUN/ { open[$3] = 1 } /^ *--- (PASS|FAIL|SKIP)/ { delete open[$3] } END { for (t in open) printf "%s ", t }' "$1"
}

# skips LOG... prints the tests that were skipped in every part, by reason, which
# -test.v prints in the line before.
skips() {
  cat "$@" 2>/dev/null | awk '
    /^ *--- PASS/ { passed[$3] = 1 }
    /^ *--- SKIP/ { why[$3] = last }
    { last = $0; sub(/^ *[a-z0-9_]+\.go:[0-9]+: */, "", last) }
    END {
      for (t in why) if (!(t in passed)) { n[why[t]]++; names[why[t]] = names[why[t]] " " t }
      for (w in n) printf "%d: %s\n    %s\n", n[w], w, substr(names[w], 2, 400)
    }' | head -60
}

# summary prints the results at the end, also if the script was interrupted.
summary() {
  local code=$? passed skipped broken
  [ -n "$running" ] && failed+=("$running (interrupted)")
  echo "== skipped in every part, with the reason"
  skips "$out"/*.log
  passed=$(cat "$out"/*.log 2>/dev/null | grep -cE '^ *--- PASS')
  skipped=$(cat "$out"/*.log 2>/dev/null | grep -cE '^ *--- SKIP')
  broken=$(cat "$out"/*.log 2>/dev/null | grep -cE '^ *--- FAIL')
  echo "$passed passed, $broken failed, $skipped skipped, in $((SECONDS / 60)) minutes"
  if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}"
    grep -HE '^ *--- FAIL|^panic:|^FAIL' "$out"/*.log | sed 's/^/  /' | head -60
    exit 1
  fi
  [ $code -eq 0 ] || echo "FAILED: with code $code"
  exit $code
}

# compile NAME PACKAGE makes a test binary.
compile() {
  go test -c -o "$out/$1.test" "$2"
}

go build -o bin/testbed ./integration/cmd/testbed || exit 1
bin/testbed build || exit 1
compile e2e ./integration/e2e || exit 1

# 1. The HDFS client's suite with a real Apache HDFS, with daemons stopped and started.
part hdfs 8 bin/testbed hdfs -- go test -count 1 -timeout 10m -v ./hdfs/...

# 2. The unit tests without -short, which make check sets, and without the race
#    detector.
part long 15 go test -timeout 10m -v ./...

# 3. One machine: cgroups, containerd, quotas and the node daemon in containers.
part machine 20 bin/testbed run -nodes 1 -mem 1024 -- go test -count 1 -p 1 -timeout 30m -v -run '^TestOnMachine$' ./cgroups ./runtime/containerd ./internal/quota ./node

# 4. The test bed itself: three machines, HDFS, faults, and no leftovers.
part testbed 8 bin/testbed run -nodes 3 -hdfs -- go test -count 1 -timeout 10m -v ./integration/testbed
part testbed-end 8 env DROVER_TESTBED_TESTS=1 go test -count 1 -timeout 10m -v ./integration/cmd/testbed

# 5. Jobs on a cluster, and failures of its parts.
part e2e 70 bin/testbed run -nodes 3 -mem 1024 -hdfs -- sh -c "cd integration/e2e && ../../$out/e2e.test -test.v -test.run \"\${TESTS:-.}\" -test.timeout $longest -drover ../../bin/drover"
