job "j" {
  stage "a" {
    command = ["true"]
    count   = 3
    volume "x" {}
  }
}
