# Word count with two Python scripts, as with Hadoop Streaming.
job "wordcount" {
  input  { path = "file:///tmp/drover-example/books/*" }
  output { path = "file:///tmp/drover-example/wordcount" }
  stage "map" {
    kind    = "map"
    command = ["python3", "wc_map.py"]
    file "wc_map.py" { source = "wc_map.py" }
    resources { cpu = 1  memory = "128MiB"  io = "50MiB/s" }
  }
  stage "reduce" {
    kind     = "reduce"
    tasks    = 2
    command  = ["python3", "wc_reduce.py"]
    combiner = true
    file "wc_reduce.py" { source = "wc_reduce.py" }
    resources { cpu = 1  memory = "128MiB"  io = "50MiB/s" }
  }
}
