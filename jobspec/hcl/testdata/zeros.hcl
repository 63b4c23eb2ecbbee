job "zeros" {
  stage "a" {
    command    = ["true"]
    tasks      = 0
    attempts   = 0
    disk       = "0"
    time_limit = "0s"
    resources {
      cpu    = 0.0001
      memory = "0"
      io     = "0B/s"
    }
  }
  stage "b" {
    command = ["true"]
    resources { cpu = 0 }
  }
}
