# Word count with the built-in programs: no interpreter is needed.
job "wordcount" {
  input  { path = "file:///tmp/drover-example/books/*" }
  output { path = "file:///tmp/drover-example/wordcount" }
  stage "map" {
    kind    = "map"
    builtin = ["wordcount"]
    resources { cpu = 1  memory = "128MiB"  io = "50MiB/s" }
  }
  stage "reduce" {
    kind     = "reduce"
    tasks    = 2
    builtin  = ["sum"]
    combiner = true
    resources { cpu = 1  memory = "128MiB"  io = "50MiB/s" }
  }
}
