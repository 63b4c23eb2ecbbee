job "wordcount" {
  tenant = "analytics"
  input  { path = "hdfs:///books/*.txt" }          # also file:///…; combine = "128MiB" packs small files
  output { path = "hdfs:///out/wordcount" }
  image  = "oci-archive:python.tar"                # uploaded by digest; registry names and rootfs: from an allow-list
  stage "map" {
    kind    = "map"
    command = ["python3", "wc_map.py"]
    file "wc_map.py" { source = "wc_map.py" }
    resources { cpu = "500m"  memory = "128MiB"  io = "20MiB/s" }
  }
  stage "reduce" { kind = "reduce"  tasks = 4  command = ["python3", "wc_reduce.py"]  combiner = true
    resources { cpu = 1  memory = "256MiB"  io = "20MiB/s" } }
}
