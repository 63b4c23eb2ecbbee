# Targets of parts of bench.sh that are measured by several programs. Sourced by bench.sh.

# coordinator_targets reads what the part coordinator has measured, prints its targets in the form of devbench's table, and
# fails if one is missed or was not measured. More is worse in each figure: of a rate it is the inverse.
coordinator_targets() {
  awk '
    BEGIN { FS = "  +" }
    $1 == "SERVERS" { for (i = 1; i <= NF; i++) column[$i] = i; next }
    /^3  / && ("FAILOVER MS" in column) && $column["FAILOVER MS"] + 0 > 0 { n++; v = $column["FAILOVER MS"] / 1000; if (v > failover) failover = v }
    /^servers=3,.* times as many placements as with one coordinator/ { split($0, f, " "); if (f[2] > 0) ratio = 1 / f[2] }
    /^Benchmark/ { k = split($0, f, /[ \t]+/)
      for (i = 2; i <= k; i++) {
        if (f[1] ~ /^BenchmarkRestart(-|$)/ && f[i] == "s-ready") restart = f[i-1]
        if (f[1] ~ /^BenchmarkSnapshotPause(-|$)/ && (f[i] == "pause-ms" || f[i] == "entry-ms") && f[i-1] > pause + 0) pause = f[i-1]
      } }
    function row(what, value, unit, target, note) {
      status = value == "" ? "not measured" : value + 0 <= target ? "met" : "MISSED"
      if (status != "met") bad = 1
      printf "%-66s  %-12s  %-9s  %-12s  %s\n", what, value == "" ? "-" : sprintf("%.3g %s", value, unit), target " " unit, status, note
    }
    END {
      printf "%-66s  %-12s  %-9s  %-12s  %s\n", "measurement", "value", "target", "", "note"
      row("death of the leader of three coordinators to the first placement", failover, "s", 3, "longest of " n + 0)
      row("placements of one coordinator over those of three", ratio, "times", 2, "median of the runs beside each other")
      row("restart with 100,000 jobs", restart, "s", 10, "")
      row("longest stop of Apply by a snapshot of a million live tasks", pause, "ms", 50, "the snapshot itself, or an entry after it")
      exit bad
    }'
}
