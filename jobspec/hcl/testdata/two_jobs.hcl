job "a" { stage "s" { command = ["true"] } }
job "b" { stage "s" { command = ["true"] } }
