job "a" {
  tenat = "x"
  stage "s" { command = ["true"] }
}
