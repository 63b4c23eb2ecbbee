# Functions of test.sh and unit.sh, which source this file: they run the parts, repeat one that failed
# once, and print the closing lines. The caller sets out (the folder of the logs), budget and
# longest.

# Unit tests collect garbage at five times what lives, not at twice: their heaps are small, and they wait for processors.
unit_gc=${GOGC:-400}

declare -A lanes # what runs beside: the process of each name
failed=() flaky=() running= flaky_units=out/check/flaky

# spend sets used to the seconds of processors that the ended commands of this shell have used.
spend() {
  local file=$out/times.$BASHPID
  times >"$file"
  used=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, "m"); s += 60 * t[1] + t[2] } printf "%d", s }' "$file")
  rm -f "$file"
}

# part NAME MINUTES COMMAND... runs a part, prints its results and keeps its log. One that fails is run again,
# unless once is set: a run of random faults that violated something is a finding, whatever the next one does.
part() {
  local name=$1 most=$((60 * $2)) start=$SECONDS code=0 again= left took missing used before; shift 2
  [ -n "${DROVER_SOAK:-}" ] && most=$budget
  left=$((budget - SECONDS))
  if [ $left -lt 60 ]; then
    echo "== $name: not run: the budget of $((budget / 60)) minutes is used up (DROVER_TEST_MINUTES)"
    failed+=("$name (no time left)")
    return
  fi
  echo "== $name"
  spend && before=$used
  running=$name
  timeout --foreground -k 60 $((left < most ? left : most)) "$@" >"$out/$name.log" 2>&1 || code=$?
  took=$((SECONDS - start)) left=$((budget - SECONDS))
  if [ $code -ne 0 ] && [ $code -ne 124 ] && [ $left -gt 120 ] && [ -z "${once:-}" ]; then # emulated machines die now and then: report it and retry once; properties replay what failed (testdata/rapid)
    printed "$out/$name.log" | head -80
    mv "$out/$name.log" "$out/$name.first.txt"
    missing=$(unproved "$name")
    echo "   $name failed with code $code after $took s (see $out/$name.first.txt); retrying: ${missing:-all of it}"
    code=0 again=1
    timeout --foreground -k 60 $((left < most ? left : most)) env TESTS="${missing:-.}" "$@" >"$out/$name.log" 2>&1 || code=$?
    grep -hE '^--- PASS' "$out/$name.first.txt" >>"$out/$name.log"
  fi
  running=
  grep -hE '^(ok|FAIL|---|panic:|testbed: )|    --- FAIL' "$out/$name.log" | grep -vE '^--- (PASS|SKIP)' | tail -40
  spend
  echo "   $name: exit code $code after $((SECONDS - start)) s, $((used - before)) s of processors"
  if [ $code -eq 0 ]; then
    [ -z "$again" ] || flaky+=("$name")
    return 0
  fi
  failed+=("$name")
  [ $code -eq 124 ] && echo "   timed out; running tests: $(underway "$out/$name.log")"
  echo "   the last lines of $out/$name.log:"
  tail -60 "$out/$name.log"
}

# beside NAME COMMAND... runs a function of parts in the background, in a process group of its own, until
# joined. Several may run at once.
beside() {
  local name=$1; shift
  set -m
  (
    failed=() flaky=()
    "$@"
    [ ${#failed[@]} -eq 0 ] || printf '%s\n' "${failed[@]}" >"$out/beside.$name.failed"
    [ ${#flaky[@]} -eq 0 ] || printf '%s\n' "${flaky[@]}" >"$out/beside.$name.flaky"
    : >"$out/beside.$name.ended"
  ) >"$out/beside.$name.txt" 2>&1 &
  lanes[$name]=$!
  set +m
}

# joined waits for all that runs beside, prints its output and takes over its results.
joined() {
  local name names
  for name in $(printf '%s\n' "${!lanes[@]}" | sort); do
    wait "${lanes[$name]}"
    unset "lanes[$name]"
    cat "$out/beside.$name.txt"
    [ -f "$out/beside.$name.ended" ] || failed+=("beside $name (ended early)")
    [ ! -f "$out/beside.$name.failed" ] || { mapfile -t names <"$out/beside.$name.failed"; failed+=("${names[@]}"); }
    [ ! -f "$out/beside.$name.flaky" ] || { mapfile -t names <"$out/beside.$name.flaky"; flaky+=("${names[@]}"); }
  done
}

# unit NAME FLAGS PACKAGE... runs unit tests of packages. A package that fails is tested once more.
# One that does not build is not. The log has the results of all tests, for the closing lines. Lint has
# vetted all packages: go test would do a part of that again, with and without the race detector.
unit() {
  local name=$1 flags=$2 again; shift 2
  # shellcheck disable=SC2086 # FLAGS are several words
  go test -vet off -timeout 20m -short -v $flags "$@" 2>&1 | tee "$out/$name.log" | results && return
  again=$(awk -F'\t' '$1 == "FAIL" && NF == 3 { print $2 }' "$out/$name.log") # not those that do not build
  if [ -z "$again" ] || grep -qE '^FAIL.*\[(build|setup) failed\]' "$out/$name.log"; then
    failed+=("$name")
    return
  fi
  mv "$out/$name.log" "$out/$name.first.txt"
  echo "== $name: once more: $(xargs <<<"$again")"
  # shellcheck disable=SC2086
  if go test -vet off -count 1 -timeout 20m -short -v $flags $again 2>&1 | tee "$out/$name.log" | results; then
    grep -vE '^ *--- FAIL' "$out/$name.first.txt" >>"$out/$name.log" # the other packages' results
    echo "unit tests ($name): $(xargs <<<"$again")" >>"$flaky_units"
  else
    failed+=("$name")
  fi
}

# results prints of a verbose log of go test a line for each package, and what tests that failed printed.
results() {
  awk '
    /^ *--- (PASS|SKIP)/ { if (!/^ /) n = keep; next }
    /^=== / || /^PASS$/ || /^FAIL$/ { next }
    /^(ok|\?) +\t/ { n = keep = 0; print; fflush(); next }
    { held[++n] = $0 }
    /^ *--- FAIL/ { keep = n }
    /^FAIL\t/ { for (i = 1; i <= n; i++) print held[i]; n = keep = 0; fflush() }
    END { for (i = 1; i <= n; i++) print held[i] }'
}

# printed LOG prints the tests that failed, each with the last 20 lines that it printed.
printed() {
  awk '
    /^=== (RUN|NAME|CONT)/ { current = $3; next }
    /^ *--- FAIL/ { for (i = max(1, n[$3] - 19); i <= n[$3]; i++) print said[$3, i]; print; next }
    /^ *--- (PASS|SKIP)/ { next }
    /^panic: / { print }
    { said[current, ++n[current]] = substr($0, 1, 300) }
    function max(a, b) { return a > b ? a : b }' "$1"
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

# failures LOG prints a line for each test that failed: its name, its package if the log
# has it, and the seed that repeats it if it is a random test.
failures() {
  awk '
    function flush(pkg,   i) { for (i = 1; i <= n; i++) print "    " failed[i] (pkg == "" ? "" : " in " pkg); n = 0; split("", seed) }
    /^=== (RUN|CONT|NAME)/ { current = $3 }
    match($0, /(RAPID_SEED=|-rapid\.seed=)[0-9]+/) {
      s = substr($0, RSTART, RLENGTH); sub(/.*=/, "", s)
      seed[current] = s
    }
    /^ *--- FAIL: / { failed[++n] = $3 (($3 in seed) ? " RAPID_SEED=" seed[$3] : "") }
    /^panic: / && n == 0 { failed[++n] = current " " $0 ((current in seed) ? " RAPID_SEED=" seed[current] : "") }
    /^(ok|FAIL)\t/ { flush($2) }
    END { flush("") }' "$1"
}

# summary prints the results at the end, also if the script was interrupted. They include those of
# make check if it ran before (DROVER_CHECKED is the folder of its logs).
summary() {
  local code=$? passed skipped broken part log logs name
  for name in "${!lanes[@]}"; do # interrupted: their processes end with this one
    kill -TERM -- "-${lanes[$name]}" 2>/dev/null
    cat "$out/beside.$name.txt"
    failed+=("beside $name (interrupted)")
  done
  [ -n "$running" ] && failed+=("$running (interrupted)")
  echo "== skipped in every part, with the reason"
  logs=("$out"/*.log ${DROVER_CHECKED:+"$DROVER_CHECKED"/*.log})
  skips "${logs[@]}"
  passed=$(cat "${logs[@]}" 2>/dev/null | grep -cE '^ *--- PASS')
  skipped=$(cat "${logs[@]}" 2>/dev/null | grep -cE '^ *--- SKIP')
  broken=$(cat "${logs[@]}" 2>/dev/null | grep -cE '^ *--- FAIL')
  echo "$passed passed, $broken failed, $skipped skipped, in $((SECONDS / 60)) minutes"
  [ ! -f "$flaky_units" ] || sed "s|^|FLAKY: |; s|$| passed only when repeated (${flaky_units%/*})|" "$flaky_units"
  for part in "${flaky[@]}"; do
    echo "FLAKY: $part passed only when it was repeated; what failed first ($out/$part.first.txt):"
    failures "$out/$part.first.txt" | head -30
  done
  if [ ${#failed[@]} -gt 0 ]; then
    echo "FAILED: ${failed[*]}"
    for part in "${failed[@]%% *}"; do
      for log in "$out/$part.first.txt" "$out/$part.log"; do
        [ -f "$log" ] && echo "  $log:" && failures "$log" | head -30
      done
    done
    exit 1
  fi
  [ $code -eq 0 ] || echo "FAILED: with code $code"
  exit $code
}
