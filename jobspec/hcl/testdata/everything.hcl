job "nightly" {
  tenant      = "analytics"
  priority    = "high"
  gather_logs = "hdfs:///logs"
  keep_failed = 3
  env         = { LANG = "C", TZ = "UTC" }
  meta        = { owner = "ops" }
  deadline    = "2026-12-01T06:00:00+01:00"
  on_miss     = "lower"
  runtime_bound = "2h"
  project     = "reports"
  image       = "rootfs:/srv/images/python"
  input  { path = "file:///var/log/app/*.gz"  combine = "64MiB" }
  output { path = "file:///srv/out"  replication = 2 }
  stage "fetch" { command = ["sh", "-c", "echo $${HOME}"]  tasks = 3  max_parallel = 2  disk = "10MiB"  time_limit = "90s" }
  stage "map" {
    kind = "map"
    after = ["fetch"]
    builtin = ["grep", "ERROR.*"]
    compress_map_output = "zstd"
    attempts = 2
    secret "TOKEN" { ref = "file:api-token" }
    secret "PASSWORD" { secret = "db@3" }
    file "conf/a.txt" { source = "a.txt"  mode = "0600" }
  }
  stage "reduce" { kind = "reduce"  tasks = 2  builtin = ["count"]  exclusive = true  containers_used_again = true
    key_fields = 2  key_order = ["text", "number desc"]  partition_keys = ["2026-01\t7"] }
}
