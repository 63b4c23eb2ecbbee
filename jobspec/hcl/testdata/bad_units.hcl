job "a" {
  stage "s" {
    command = ["true"]
    time_limit = "ten minutes"
    resources { cpu = "fast"  memory = "128"  io = "20MiB" }
  }
}
