# Targets of parts of bench.sh that are measured by several programs. Sourced by bench.sh.

# emulated_targets prints the targets of the parts task, suspend and suspend-large, which measure on emulated machines and do not check them:
# the summary does.
emulated_targets() {
  cat <<'END'
== task
measurement                                                value  target     note
10 containers, CPU of the machine over ctr run             -      1 times    not measured
== suspend
measurement                                                value  target     note
frozen: from the decision to the processor freed, median  -      0.02 s     not measured
checkpointed: time of the dump over criu alone             -      1.5 times  not measured
checkpointed: time of the restore over criu alone          -      1.5 times  not measured
== suspend-large
measurement                                                value  target     note
checkpointed: time of the dump over criu alone             -      1.2 times  not measured
checkpointed: time of the restore over criu alone          -      1.2 times  not measured
END
}

# coordinator_targets reads what the part coordinator has measured, prints its targets in the form of devbench's table, and
# fails if one is missed or was not measured. More is worse in each figure: of a rate it is the inverse.
coordinator_targets() {
  awk '
    BEGIN { FS = "  +" }
    $1 == "SERVERS" { for (i = 1; i <= NF; i++) column[$i] = i; next }
    /^1  / && $column["SYNC"] != "no" && $column["PAGES"] == 0 { one++
      placements[one] = $column["PLACEMENTS/S"]; nodes[one] = $column["NODES AT HALF A CORE"]
      submissions[one] = $column["SUBMISSIONS/S"]; p99[one] = $(column["AT A RATE/S"] + 2) }
    /^3  / && ("FAILOVER MS" in column) && $column["FAILOVER MS"] + 0 > 0 { n++; v = $column["FAILOVER MS"] / 1000; if (v > failover) failover = v }
    /^servers=3,.* times as many placements as with one coordinator/ { split($0, f, " "); if (f[2] > 0) ratio = 1 / f[2] }
    /^Benchmark/ { k = split($0, f, /[ \t]+/)
      for (i = 2; i <= k; i++) {
        if (f[1] ~ /^BenchmarkRestart(-|$)/ && f[i] == "s-ready") restart = f[i-1]
        if (f[1] ~ /^BenchmarkSnapshotPause(-|$)/ && (f[i] == "pause-ms" || f[i] == "entry-ms") && f[i-1] > pause + 0) pause = f[i-1]
      } }
    function median(values, n,   i, j, v) {
      for (i = 2; i <= n; i++) { v = values[i]; for (j = i - 1; j > 0 && values[j] + 0 > v + 0; j--) values[j + 1] = values[j]; values[j + 1] = v }
      return n ? (values[int((n + 1) / 2)] + values[int(n / 2) + 1]) / 2 : 0
    }
    function each(values, n, parts,   m) { m = median(values, n); return m > 0 ? parts / m : "" } # one of so many parts a second
    function row(what, value, unit, target, note) {
      status = value == "" ? "not measured" : value + 0 <= target ? "met" : "MISSED"
      if (status != "met") bad = 1
      printf "%-66s  %-12s  %-9s  %-12s  %s\n", what, value == "" ? "-" : sprintf("%.3g %s", value, unit), target " " unit, status, note
    }
    END {
      printf "%-66s  %-12s  %-9s  %-12s  %s\n", "measurement", "value", "target", "", "note"
      row("a placement through the whole live way of one coordinator", each(placements, one, 1e6), "us", 100, "10,000 a second; median of " one + 0)
      row("CPU for the reports of one node, each second", each(nodes, one, 0.5e6), "us", 100, "5,000 nodes at half a core; median of " one + 0)
      row("a durable submission, 128 clients", each(submissions, one, 1e6), "us", 500, "2,000 a second; median of " one + 0)
      row("99 of 100 durable submissions at 2,000 a second", one ? median(p99, one) : "", "ms", 100, "median of " one + 0)
      row("death of the leader of three coordinators to the first placement", failover, "s", 3, "longest of " n + 0)
      row("placements of one coordinator over those of three", ratio, "times", 2, "median of the runs beside each other")
      row("restart with 100,000 jobs", restart, "s", 3, "")
      row("longest stop of Apply by a snapshot of a million live tasks", pause, "ms", 50, "the snapshot itself, or an entry after it")
      exit bad
    }'
}

# clone_targets reads what the part clone has measured, lines "WHAT: N s", and prints its targets in the form of devbench's table.
# It fails if one is missed or was not measured.
clone_targets() {
  awk '
    { i = index($0, ": "); v = substr($0, i + 2); if (i && v ~ /^[0-9.]+ s$/) seconds[substr($0, 1, i - 1)] = v + 0 }
    function row(what, target, note,   status) {
      status = !(what in seconds) ? "not measured" : seconds[what] <= target ? "met" : "MISSED"
      if (status != "met") bad = 1
      printf "%-38s  %-9s  %-7s  %-12s  %s\n", what, what in seconds ? seconds[what] " s" : "-", target " s", status, note
    }
    END {
      printf "%-38s  %-9s  %-7s  %-12s  %s\n", "measurement", "value", "target", "", "note"
      row("make run, empty caches", 300, "of Go, Maven and the test bed; packages are installed")
      row("make run", 90, "again")
      row("word count of 32 maps", 75, "in it, on three emulated machines")
      row("make check", 60, "again")
      row("make test", 1500, "after make check, which it makes again")
      exit bad
    }'
}

# million_targets reads the table of `drover bench scheduler` with a million pending tasks, and prints its targets in the form of
# devbench's table. It fails if one is missed or was not measured.
million_targets() {
  awk '
    BEGIN { FS = "  +" }
    $1 == "NODES" { for (i = 1; i <= NF; i++) column[$i] = i; next }
    $1 == "100000" && $column["TASKS"] == "1000000" && $column["FEATURES"] == "all" {
      rate = $column["PLACEMENTS/S"]; split($column["RSS"], m, " "); memory = m[1] * (m[2] == "GiB" ? 1024 : 1) }
    function row(what, value, unit, target, note,   status) {
      status = value == "" ? "not measured" : value + 0 <= target ? "met" : "MISSED"
      if (status != "met") bad = 1
      printf "%-72s  %-9s  %-8s  %-12s  %s\n", what, value == "" ? "-" : sprintf("%.3g %s", value, unit), target " " unit, status, note
    }
    END {
      printf "%-72s  %-9s  %-8s  %-12s  %s\n", "measurement", "value", "target", "", "note"
      row("a placement, all features, 100,000 nodes, a million tasks waiting", rate > 0 ? 1e6 / rate : "", "us", 25, "40,000 a second")
      row("memory of it", memory, "MiB", 4096, "")
      exit bad
    }'
}
