job "a" {
  stage "s" { command = ["true"]  attempts = 1  resources { cpu = "1m"  memory = "1KiB" } }
}
