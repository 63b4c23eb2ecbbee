# A task that allocates about 100 MiB and computes, to try out suspension:
#
#   drover job run -detach examples/suspend/memory.hcl
#   drover bench suspend memory memory/0
#   drover job stop memory
job "memory" {
  image = "oci-archive:busybox.tar"

  stage "memory" {
    command = ["awk", "BEGIN { s = \"0123456789abcdef\"; while (length(s) < 50000000) s = s s; for (;;) n++ }"]
    disk    = "16MiB"

    resources {
      cpu    = "500m"
      memory = "192MiB"
      io     = "4MiB/s"
    }
  }
}
