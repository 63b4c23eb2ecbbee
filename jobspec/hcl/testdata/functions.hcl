job "a" {
  stage "s" { command = [file("/etc/passwd")]  env = { A = env.HOME } }
}
