job "a" {
  input  { paths = ["/books/*.txt", "s3://x/y", "hdfs:///ok/*"] }
  output { path = "hdfs:///out/*" }
  stage "m" { kind = "map"  builtin = ["identity"]
    file "../x" { source = "x" }
  }
}
