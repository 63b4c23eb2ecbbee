job "a" {
  stage "s" { command = ["true"
}
