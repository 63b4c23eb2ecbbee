job "a" {
  stage "s" { command = ["true"]  attempts = 0  resources { cpu = "1m"  memory = "1KiB" } }
}
