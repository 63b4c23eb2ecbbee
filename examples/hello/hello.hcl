# Three tasks that say hello. Try it: drover dev, then drover job run examples/hello/hello.hcl
job "hello" {
  stage "greet" {
    command   = ["sh", "-c", "echo hello from task $DROVER_TASK of $DROVER_TASKS"]
    tasks     = 3
    resources { cpu = "100m"  memory = "32MiB"  io = "1MiB/s" }
  }
}
