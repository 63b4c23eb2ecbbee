# A task that holds about 100 MiB and counts, to be suspended and resumed:
#
#   drover job run -detach examples/suspend/hold.hcl
#   drover bench suspend hold hold/0
#   drover job stop hold
job "hold" {
  image = "oci-archive:busybox.tar"

  stage "hold" {
    command = ["awk", "BEGIN { s = \"0123456789abcdef\"; while (length(s) < 50000000) s = s s; for (;;) n++ }"]
    disk    = "16MiB"

    resources {
      cpu    = "500m"
      memory = "192MiB"
      io     = "4MiB/s"
    }
  }
}
