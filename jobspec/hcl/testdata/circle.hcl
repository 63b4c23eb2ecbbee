job "a" {
  stage "one" { command = ["true"]  after = ["two"] }
  stage "two" { command = ["true"]  after = ["one"] }
}
