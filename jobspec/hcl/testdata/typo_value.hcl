job "a" {
  priority = "hihg"
  stage "s" { kind = "grup"  command = ["true"] }
}
