job "a" {
  stage "m" { kind = "map"  builtin = ["wordcont"]  tasks = 3 }
  stage "r" { kind = "reduce"  builtin = ["sum"]  command = ["cat"] }
}
