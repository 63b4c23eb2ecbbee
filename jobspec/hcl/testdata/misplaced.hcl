job "j" {
  tasks = 3
  frequency = "daily"
  stage "a" {
    memory   = "1GiB"
    cpu      = "1"
    deadline = "2026-11-21T18:00:00Z"
    command  = "true"
    args     = ["-x"]
  }
}
