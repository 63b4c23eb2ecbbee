package jobspec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/seed"
)

// validJob returns a job with a map, a reduce and a group stage that has no problem.
func validJob() *Job {
	j := &Job{Name: "j", Input: &Input{Paths: []string{"hdfs:///in/*"}}, Output: &Output{Path: "hdfs:///out"}, Stages: []Stage{
		{Name: "m", Kind: KindMap, Command: []string{"cat"}},
		{Name: "r", Kind: KindReduce, Builtin: []string{"sum"}, Tasks: 2, After: []string{"m"}},
		{Name: "g", Kind: KindGroup, Command: []string{"true"}},
	}}
	SetDefaults(j)
	return j
}

// Each rule of Validate: a change of a valid job, and the problems that the author reads.
func TestEachRuleOfValidation(t *testing.T) {
	deadline, digest := time.Unix(1, 0), "sha256:"+strings.Repeat("ab", 32)
	const nameHint = "use 1 to 128 letters, digits, '.', '_' or '-', a letter or digit first"
	for _, c := range []struct {
		rule   string
		change func(j *Job)
		want   []string
	}{
		{"nothing", func(*Job) {}, nil},
		{"everything that is optional", func(j *Job) {
			j.Project, j.Deadline, j.OnMiss, j.RuntimeBound, j.KeepFailed = "p", &deadline, OnMissStop, Duration(time.Hour), 100
			j.Env = map[string]string{"A_1": "x=y"}
			j.Image = &Image{Kind: ImageRootfs, Source: "/srv/image"}
			j.Output.Replication = 3
			s := &j.Stages[1]
			s.Combiner, s.CombineCommand, s.MaxParallel, s.TimeLimit = true, []string{"x"}, 5, Duration(time.Minute)
			s.SlowStart = 0.8
			s.Files = []File{{Name: "a/b.txt", Source: "b.txt", Mode: 0o755}, {Name: "c", Digest: digest, Size: MaxUploadBytes}}
			s.Secrets = []Secret{{Env: "TOKEN", Ref: "file:token"}, {Env: "OWN", Ref: "file:default/token"}}
		}, nil},

		{"version", func(j *Job) { j.Version = Version + 1 }, []string{fmt.Sprintf("version: schema version %d is not known; this program knows version %d", Version+1, Version)}},
		{"version below the first", func(j *Job) { j.Version = -1 }, []string{fmt.Sprintf("version: schema version -1 is not known; this program knows version %d", Version)}},
		{"no name", func(j *Job) { j.Name = "" }, []string{`name: "" is not a valid name; ` + nameHint}},
		{"a name that begins with a dot", func(j *Job) { j.Name = ".j" }, []string{`name: ".j" is not a valid name; ` + nameHint}},
		{"a name of 129 letters", func(j *Job) { j.Name = strings.Repeat("n", 129) }, []string{`name: "` + strings.Repeat("n", 129) + `" is not a valid name; ` + nameHint}},
		{"a name that is a number", func(j *Job) { j.Name = "20" }, []string{`name: "20" is digits alone, like the number of a job; add a letter`}},
		{"a name with a number", func(j *Job) { j.Name = "2026-11-05" }, nil},
		{"tenant", func(j *Job) { j.Tenant = "a/b" }, []string{`tenant: "a/b" is not a valid name; ` + nameHint}},
		{"project", func(j *Job) { j.Project = "a b" }, []string{`project: "a b" is not a valid name; ` + nameHint}},
		{"priority, near", func(j *Job) { j.Priority = "hihg" }, []string{`priority: priority "hihg" is not known; did you mean "high"?`}},
		{"priority, far", func(j *Job) { j.Priority = "middling" }, []string{`priority: priority "middling" is not known; choose one of low, high`}},
		{"on_miss without deadline", func(j *Job) { j.OnMiss = OnMissStop }, []string{"on_miss: on_miss without a deadline; set deadline, or leave on_miss out"}},
		{"on_miss", func(j *Job) { j.Deadline, j.OnMiss = &deadline, "lowr" }, []string{`on_miss: on_miss "lowr" is not known; did you mean "lower"?`}},
		{"runtime_bound", func(j *Job) { j.RuntimeBound = -1 }, []string{"runtime_bound: negative duration; give a positive duration such as 30m, or leave it out"}},
		{"runtime_bound of nothing", func(j *Job) { j.RuntimeBound = Duration(10 * time.Microsecond) }, []string{"runtime_bound: 10µs is less than a millisecond; give a positive duration such as 30m, or leave it out"}},
		{"runtime_bound of ten years", func(j *Job) { j.RuntimeBound = Duration(87600 * time.Hour) }, nil},
		{"runtime_bound beyond what can be counted", func(j *Job) { j.RuntimeBound = math.MaxInt64 }, []string{"runtime_bound: 2562047h47m16.854775807s is more than ten years; give at most 87600h, or leave it out"}},
		{"keep_failed below 0", func(j *Job) { j.KeepFailed = -1 }, []string{"keep_failed: -1 attempts to keep; give 0 to 100"}},
		{"keep_failed above 100", func(j *Job) { j.KeepFailed = 101 }, []string{"keep_failed: 101 attempts to keep; give 0 to 100"}},
		{"env of the job, sorted", func(j *Job) { j.Env = map[string]string{"b-c": "", "1a": "", "OK": "x\x00"} }, []string{
			`env: "1a" is not a valid environment variable name; use letters, digits and _`,
			`env: the value of "OK" has a NUL byte; remove the NUL byte`,
			`env: "b-c" is not a valid environment variable name; use letters, digits and _`}},
		{"env of a stage", func(j *Job) { j.Stages[2].Env = map[string]string{"": "x"} }, []string{`stage["g"].env: "" is not a valid environment variable name; use letters, digits and _`}},

		{"image kind", func(j *Job) { j.Image = &Image{Kind: "oci", Source: "x"} }, []string{`image: image kind "oci" is not known; choose one of oci-archive, registry, rootfs`}},
		{"image source", func(j *Job) { j.Image = &Image{Kind: ImageOCIArchive} }, []string{`image: the image has no source; write for example "oci-archive:python.tar"`}},
		{"relative rootfs", func(j *Job) { j.Image = &Image{Kind: ImageRootfs, Source: "srv"} }, []string{`image: rootfs "srv" is not absolute; give the folder's absolute path on the nodes`}},
		{"rootfs that goes up", func(j *Job) { j.Image = &Image{Kind: ImageRootfs, Source: "/srv/images/../.."} }, []string{`image: rootfs "/srv/images/../.." contains ..; write the path without ..`}},
		{"image digest", func(j *Job) { j.Image = &Image{Kind: ImageOCIArchive, Source: "x", Digest: "md5:1"} }, []string{`image: "md5:1" is not a digest; want sha256: and 64 hex digits`}},
		{"image size", func(j *Job) {
			j.Image = &Image{Kind: ImageOCIArchive, Source: "x", Digest: digest, Size: MaxUploadBytes + 1}
		}, []string{"image: " + FormatSize(MaxUploadBytes+1) + " is over the limit of 512MiB for one uploaded file; put large data into HDFS and name it as input"}},

		{"no input path", func(j *Job) { j.Input.Paths = nil }, []string{`input.paths: the input names no path; write path = "hdfs:///folder/*.txt"`}},
		{"input path without a scheme", func(j *Job) { j.Input.Paths = []string{"hdfs:///a", "/b"} }, []string{`input.paths[1]: "/b" has no known scheme; write hdfs:///path, hdfs://host:port/path or file:///path`}},
		{"input path of another scheme", func(j *Job) { j.Input.Paths = []string{"s3://b/c"} }, []string{`input.paths[0]: "s3://b/c" has no known scheme; write hdfs:///path, hdfs://host:port/path or file:///path`}},
		{"relative input path", func(j *Job) { j.Input.Paths = []string{"hdfs://host"} }, []string{`input.paths[0]: "hdfs://host" has no absolute path; give an absolute path: hdfs:///path`}},
		{"file path with a host", func(j *Job) { j.Input.Paths = []string{"file://host/a"} }, []string{`input.paths[0]: "file://host/a" has no absolute path; give an absolute path: file:///path`}},
		{"input path with a bad host", func(j *Job) { j.Input.Paths = []string{"hdfs://ho st/a"} }, []string{`input.paths[0]: "hdfs://ho st/a" has no valid host; write hdfs://host:port/path`}},
		{"input path with ..", func(j *Job) { j.Input.Paths = []string{"hdfs:///a/../b"} }, []string{`input.paths[0]: "hdfs:///a/../b" contains ..; write the path without ..`}},
		{"input path with NUL", func(j *Job) { j.Input.Paths = []string{"hdfs:///a\x00"} }, []string{"input.paths[0]: the path has a NUL byte; remove the NUL byte"}},
		{"combine", func(j *Job) { j.Input.CombineBytes = -1 }, []string{`input.combine: negative size; give a size such as "128MiB"`}},
		{"an input that nobody reads", func(j *Job) { j.Stages, j.Output = j.Stages[2:], nil }, []string{`input: no stage reads the input; add a stage with kind = "map", or remove the input`}},
		{"output path with a pattern", func(j *Job) { j.Output.Path = "hdfs:///out*" }, []string{`output.path: "hdfs:///out*" has a pattern; only inputs may; name one path`}},
		{"output in a folder of unfinished output", func(j *Job) { j.Output.Path = "hdfs:///a/_temporary.b.1c/0.0.1.1/part-0/x" }, []string{`output.path: "_temporary.b.1c" is a folder of unfinished output; give a path outside of it`}},
		{"logs in a folder of unfinished output", func(j *Job) { j.GatherLogs = "hdfs:///a/_temporary.b.1c" }, []string{`gather_logs: "_temporary.b.1c" is a folder of unfinished output; give a path outside of it`}},
		{"replication", func(j *Job) { j.Output.Replication = 101 }, []string{"output.replication: replication 101; give 0 (the file system's default) to 100"}},

		{"no stage", func(j *Job) { j.Stages, j.Input, j.Output = nil, nil, nil }, []string{`stage: the job has no stage; add stage "main" { command = [...] }`}},
		{"an output that nobody writes", func(j *Job) { j.Stages, j.Input = j.Stages[2:], nil }, []string{"output: no stage writes the output; only map and reduce stages write the output; a group writes its own files"}},
		{"a stage too many", func(j *Job) {
			g := j.Stages[2]
			j.Stages, j.Input, j.Output = nil, nil, nil
			for i := range MaxStages + 1 {
				g.Name = fmt.Sprint("g", i)
				j.Stages = append(j.Stages, g)
			}
		}, []string{"stage: 65 stages; split it into jobs of at most 64 stages"}},
		{"name of a stage", func(j *Job) { j.Stages[2].Name = "-" }, []string{`stage["-"].name: "-" is not a valid name; ` + nameHint}},
		{"two stages of one name", func(j *Job) { j.Stages[2].Name = "m" }, []string{`stage["m"].name: two stages are called "m"; give each stage a unique name`}},
		{"reduce without map", func(j *Job) { j.Stages, j.Input, j.Output = j.Stages[1:2], nil, nil; j.Stages[0].After = nil }, []string{`stage: a reduce stage needs a map stage; add a stage with kind = "map"`}},
		{"map without input", func(j *Job) { j.Input = nil }, []string{`stage["m"].kind: a map stage needs an input; add input { path = "hdfs:///…" } to the job`}},
		{"tasks of a map stage", func(j *Job) { j.Stages[0].Tasks = 3 }, []string{`stage["m"].tasks: a map stage's number of tasks comes from its input; remove it: each split gets one task`}},
		{"tasks of a reduce stage", func(j *Job) { j.Stages[1].Tasks = -1 }, []string{`stage["r"].tasks: -1 tasks; give 1 to 65535`}},
		{"too many reducers", func(j *Job) { j.Stages[1].Tasks = MaxReduceTasks + 1 }, []string{`stage["r"].tasks: 65536 tasks; give 1 to 65535`}},
		{"tasks of a group", func(j *Job) { j.Stages[2].Tasks = MaxTasks + 1 }, []string{`stage["g"].tasks: 1000001 tasks; give 1 to 1000000`}},
		{"kind", func(j *Job) { j.Stages[2].Kind = "gruop" }, []string{`stage["g"].kind: kind "gruop" is not known; did you mean "group"?`}},
		{"two map stages", func(j *Job) { s := j.Stages[0]; s.Name = "m2"; j.Stages = append(j.Stages, s) }, []string{`stage["m2"].kind: a job has at most one map stage; split it into two jobs`}},
		{"combiner outside reduce", func(j *Job) { j.Stages[0].Combiner = true }, []string{`stage["m"].combiner: a combiner belongs to the reduce stage; put it into the reduce stage`}},
		{"slow_start outside reduce", func(j *Job) { j.Stages[0].SlowStart = 0.5 }, []string{`stage["m"].slow_start: slow_start belongs to the reduce stage; put it into the reduce stage`}},
		{"slow_start above 1", func(j *Job) { j.Stages[1].SlowStart = 1.5 }, []string{`stage["r"].slow_start: 1.5 is not above 0 and at most 1; give a part of the map tasks, such as 0.8`}},
		{"after nobody", func(j *Job) { j.Stages[1].After = []string{"n"} }, []string{`stage["r"].after: no stage is called "n"; did you mean "g"?`}},
		{"a stage after itself", func(j *Job) { j.Stages[1].After = []string{"r"} }, []string{`stage["r"].after: the stages depend on each other in a cycle; break the cycle`}},
		{"a cycle of two", func(j *Job) { j.Stages[0].After, j.Stages[1].After = []string{"r"}, []string{"m"} }, []string{`stage["m"].after: the stages depend on each other in a cycle; break the cycle`}},

		{"a variable that no program can be started with", func(j *Job) { j.Env = map[string]string{"A": strings.Repeat("x", 128<<10-2)} }, []string{`env: "A" and its value have 131072 bytes, and Linux starts no program with more than 131071; write it to a file of the stage`}},
		{"the longest variable", func(j *Job) { j.Stages[2].Env = map[string]string{"A": strings.Repeat("x", 128<<10-3)} }, nil},
		{"an argument that no program can be started with", func(j *Job) { j.Stages[2].Command = []string{"true", strings.Repeat("x", 128<<10)} }, []string{`stage["g"].command: argument 1 has 131072 bytes, and Linux starts no program with more than 131071; write it to a file of the stage`}},
		{"no program", func(j *Job) { j.Stages[2].Command = nil }, []string{`stage["g"].command: the stage has no program; write command = ["program", "argument"]`}},
		{"two programs", func(j *Job) { j.Stages[1].Command = []string{"x"} }, []string{`stage["r"].builtin: both command and builtin are set; keep one of the two`}},
		{"builtin", func(j *Job) { j.Stages[1].Builtin = []string{"summ"} }, []string{`stage["r"].builtin: a reduce stage has no builtin "summ"; did you mean "sum"?`}},
		{"builtin of a group", func(j *Job) { j.Stages[2].Command, j.Stages[2].Builtin = nil, []string{"sum"} }, []string{`stage["g"].builtin: a group stage has no builtin "sum"; write command = ["program", "argument"]; map and reduce stages have builtins`}},
		{"grep without an expression", func(j *Job) { j.Stages[0].Command, j.Stages[0].Builtin = nil, []string{"grep"} }, []string{`stage["m"].builtin: grep takes one regular expression; write builtin = ["grep", "expression"]`}},
		{"a builtin where command would be as well", func(j *Job) { j.Stages[0].Command, j.Stages[0].Builtin = nil, []string{""} }, []string{`stage["m"].builtin: a map stage has no builtin ""; choose one of identity, wordcount, grep`}},
		{"grep for no expression", func(j *Job) { j.Stages[0].Command, j.Stages[0].Builtin = nil, []string{"grep", "a("} }, []string{"stage[\"m\"].builtin: grep: error parsing regexp: missing closing ): `a(`; write it as https://golang.org/s/re2syntax says"}},
		{"grep for a NUL byte", func(j *Job) { j.Stages[0].Command, j.Stages[0].Builtin = nil, []string{"grep", "a\x00"} }, []string{`stage["m"].builtin: the expression has a NUL byte; remove the NUL byte`}},
		{"a builtin with an argument", func(j *Job) { j.Stages[1].Builtin = []string{"sum", "-x"} }, []string{`stage["r"].builtin: sum takes no argument; write builtin = ["sum"]`}},
		{"a builtin that cannot combine", func(j *Job) { j.Stages[1].Builtin, j.Stages[1].Combiner = []string{"count"}, true }, []string{`stage["r"].builtin: builtin "count" is no combiner; wordcount and sum are; leave combiner out, or name another program with combine_command`}},
		{"another program combines for it", func(j *Job) {
			j.Stages[1].Builtin, j.Stages[1].Combiner, j.Stages[1].CombineCommand = []string{"count"}, true, []string{"c"}
		}, nil},
		{"an unknown kind with a builtin", func(j *Job) {
			j.Stages[2].Kind, j.Stages[2].Command, j.Stages[2].Builtin = "grup", nil, []string{"sum"}
		}, []string{`stage["g"].kind: kind "grup" is not known; did you mean "group"?`}},
		{"files of the combiner that the map stage has too", func(j *Job) {
			j.Stages[0].Files = []File{{Name: "a", Source: "x"}, {Name: "b", Source: "x", Digest: digest}, {Name: "c", Source: "x", Mode: 0o755}, {Name: "d", Source: "x"}}
			j.Stages[1].Files = []File{{Name: "a", Source: "y"}, {Name: "b", Source: "x", Digest: digest[:70] + "0"}, {Name: "c", Source: "x"}, {Name: "d", Source: "x"}, {Name: "e", Source: "y"}}
			j.Stages[1].Combiner = true
		}, []string{
			`stage["r"].file["a"]: the combiner runs beside the map stage's files, of which another one is called "a"; rename one of the two, or give both the same source and mode`,
			`stage["r"].file["b"]: the combiner runs beside the map stage's files, of which another one is called "b"; rename one of the two, or give both the same source and mode`,
			`stage["r"].file["c"]: the combiner runs beside the map stage's files, of which another one is called "c"; rename one of the two, or give both the same source and mode`}},
		{"files of the combiner and folders of the map stage", func(j *Job) {
			j.Stages[0].Files = []File{{Name: "a/b/c", Source: "x"}, {Name: "d", Source: "x"}}
			j.Stages[1].Files = []File{{Name: "a/b", Source: "x"}, {Name: "d/e/f", Source: "x"}, {Name: "a/c", Source: "x"}}
			j.Stages[1].Combiner = true
		}, []string{
			`stage["r"].file["a/b"]: "a/b" would be a file and a folder: the combiner runs beside the map stage's files; rename one of the two`,
			`stage["r"].file["d/e/f"]: "d" would be a file and a folder: the combiner runs beside the map stage's files; rename one of the two`}},
		{"the same names without a combiner", func(j *Job) {
			j.Stages[0].Files, j.Stages[1].Files = []File{{Name: "a", Source: "x"}, {Name: "b/c", Source: "x"}}, []File{{Name: "a", Source: "y"}, {Name: "b", Source: "x"}}
		}, nil},
		{"an empty combiner", func(j *Job) { j.Stages[1].CombineCommand = []string{""} }, []string{`stage["r"].combine_command: the command's first element is empty; name the program first`}},
		{"a map stage after its reduce stage", func(j *Job) { j.Stages[0].After, j.Stages[1].After = []string{"r"}, nil }, []string{`stage["m"].after: the stages depend on each other in a cycle; break the cycle: a reduce stage always follows the map stage`}},
		{"a map stage after a group after the reduce stage", func(j *Job) {
			j.Stages[0].After, j.Stages[1].After, j.Stages[2].After = []string{"g"}, nil, []string{"r"}
		}, []string{`stage["m"].after: the stages depend on each other in a cycle; break the cycle: a reduce stage always follows the map stage`}},
		{"a deadline that UTC cannot show", func(j *Job) {
			late := time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600))
			j.Deadline = &late
		}, []string{"deadline: 10000 is no year of a deadline in UTC; give a time from the year 1 to 9999"}},
		{"an empty program", func(j *Job) { j.Stages[2].Command = []string{"", "x"} }, []string{`stage["g"].command: the command's first element is empty; name the program first`}},
		{"NUL in an argument", func(j *Job) { j.Stages[2].Command = []string{"x", "\x00"} }, []string{`stage["g"].command: argument 1 has a NUL byte; remove the NUL byte`}},

		{"the least resources", func(j *Job) {
			j.Stages[2].Resources, j.Stages[2].Disk = Resources{CPU: minCPU - 1, Memory: MinMemory - 1, IO: minIO - 1}, minDisk-1
		}, []string{`stage["g"].resources.cpu: resources.cpu is too small; give at least 10m`, `stage["g"].resources.memory: resources.memory is too small; give at least 8MiB`,
			`stage["g"].resources.io: resources.io is too small; give at least 64KiB/s`, `stage["g"].disk: disk is too small; give at least 1MiB`}},
		{"resources beyond any machine", func(j *Job) { j.Stages[2].Resources.Memory = 1<<50 + 1 }, []string{`stage["g"].resources.memory: resources.memory is too large; no machine has so much`}},
		{"attempts", func(j *Job) { j.Stages[2].Attempts = 101 }, []string{`stage["g"].attempts: 101 attempts; give 1 to 100`}},
		{"time_limit of nothing", func(j *Job) { j.Stages[2].TimeLimit = 999_999 }, []string{`stage["g"].time_limit: 999.999µs is less than a millisecond; give a positive duration such as 30m, or leave it out`}},
		{"time_limit of more than ten years", func(j *Job) { j.Stages[2].TimeLimit = Duration(87600*time.Hour + 1) }, []string{`stage["g"].time_limit: 87600h0m0.000000001s is more than ten years; give at most 87600h, or leave it out`}},
		{"time_limit", func(j *Job) { j.Stages[2].TimeLimit = -1 }, []string{`stage["g"].time_limit: negative duration; give a positive duration such as 30m, or leave it out`}},
		{"max_parallel", func(j *Job) { j.Stages[2].MaxParallel = -1 }, []string{`stage["g"].max_parallel: negative number; give 0 (no limit) or more`}},

		{"names of files", func(j *Job) {
			for _, n := range []string{"", ".", "/a", "a//b", "a/", "./a", "..", "../a", ".drover/x", "a\x00", "a/" + strings.Repeat("é", 128), strings.Repeat("a/", 600) + "a"} {
				j.Stages[2].Files = append(j.Stages[2].Files, File{Name: n, Source: "x"})
			}
		}, func() (want []string) {
			for _, n := range []string{"", ".", "/a", "a//b", "a/", "./a", "..", "../a", ".drover/x", "a\x00", "a/" + strings.Repeat("é", 128), strings.Repeat("a/", 600) + "a"} {
				want = append(want, fmt.Sprintf("stage[\"g\"].file[%q]: %q is not a valid name for a file of the task; give a relative path below the task's folder, such as data/words.txt", n, n))
			}
			return want
		}()},
		{"two files of one name", func(j *Job) { j.Stages[2].Files = []File{{Name: "a", Source: "x"}, {Name: "a", Source: "y"}} }, []string{`stage["g"].file["a"]: two files are called "a"; give each file a unique name`}},
		{"a file that is a folder too", func(j *Job) {
			j.Stages[2].Files = []File{{Name: "a/b/c", Source: "x"}, {Name: "a", Source: "y"}, {Name: "ab", Source: "z"}}
		}, []string{`stage["g"].file["a/b/c"]: "a" would be a file and a folder; rename one of the two`}},
		{"two secrets for one variable", func(j *Job) {
			j.Stages[2].Secrets = []Secret{{Env: "A", Ref: "secret:x"}, {Env: "B", Ref: "secret:x"}, {Env: "A", Ref: "secret:y"}}
		}, []string{`stage["g"].secret["A"]: two secrets are for the variable "A"; give each secret a variable of its own`}},
		{"mode of a file", func(j *Job) { j.Stages[2].Files = []File{{Name: "a", Source: "x", Mode: 0o4755}} }, []string{`stage["g"].file["a"]: mode 04755; give permission bits such as "0755"`}},
		{"a file from nowhere", func(j *Job) { j.Stages[2].Files = []File{{Name: "a"}} }, []string{`stage["g"].file["a"]: the file has no source; write source = "path"`}},
		{"size of a file", func(j *Job) { j.Stages[2].Files = []File{{Name: "a", Digest: digest, Size: -1}} }, []string{`stage["g"].file["a"]: ` + FormatSize(-1) + " is over the limit of 512MiB for one uploaded file; put large data into HDFS and name it as input"}},
		{"variable of a secret", func(j *Job) { j.Stages[2].Secrets = []Secret{{Env: "a-b", Ref: "file:x"}} }, []string{`stage["g"].secret["a-b"]: "a-b" is not a valid environment variable name; use letters, digits and _`}},
		{"reference of a secret", func(j *Job) { j.Stages[2].Secrets = []Secret{{Env: "A", Ref: "vault:x"}} }, []string{`stage["g"].secret["A"]: reference "vault:x" is not known; write secret = "NAME" for one that drover secret put has stored, or ref = "file:NAME" for a file in the tenant's folder of secrets on the nodes`}},
		{"secret of another tenant", func(j *Job) { j.Stages[2].Secrets = []Secret{{Env: "A", Ref: "file:b/x"}} }, []string{`stage["g"].secret["A"]: reference "file:b/x" names a secret of tenant "b", this job's tenant is "default"; write secret = "NAME" for one that drover secret put has stored, or ref = "file:NAME" for a file in the tenant's folder of secrets on the nodes`}},

		{"two problems, in the order of the fields", func(j *Job) { j.Name, j.Stages[2].Attempts = "", -1 }, []string{`name: "" is not a valid name; ` + nameHint, `stage["g"].attempts: -1 attempts; give 1 to 100`}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			j := validJob()
			c.change(j)
			var got []string
			for _, p := range Validate(j) {
				got = append(got, p.String())
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("problems (- want, + got):\n%s", d)
			}
			for _, unread := range Validate(j) { // nothing is said of a field that could not be read
				for _, p := range ValidateRead(j, func(path string) bool { return path != unread.Path }) {
					if p.Path == unread.Path {
						t.Errorf("%s could not be read: %s", unread.Path, p)
					}
				}
			}
		})
	}
}

// damage sets one field at random somewhere in v to a random value, to reach what no table lists.
func damage(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || r.IntN(4) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			return
		}
		damage(r, v.Elem())
	case reflect.Struct:
		if f := v.Field(r.IntN(v.NumField())); f.CanSet() {
			damage(r, f)
		}
	case reflect.Slice:
		if v.Len() == 0 || r.IntN(4) == 0 {
			v.Set(reflect.MakeSlice(v.Type(), r.IntN(3), 3))
			return
		}
		damage(r, v.Index(r.IntN(v.Len())))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{[]string{"", "A", "\x00", "a b"}[r.IntN(4)]: "\x00"}))
	case reflect.String:
		v.SetString([]string{"", "map", "group", "m", "hdfs://", "file:", "file:///..", "sha256:", "\x00", "high", "grep", "../x", "é"}[r.IntN(13)])
	case reflect.Int, reflect.Int64:
		v.SetInt([]int64{0, 1, -1, 1 << 62, -1 << 63, 1<<63 - 1}[r.IntN(6)])
	case reflect.Uint32:
		v.SetUint(uint64(r.Uint32()))
	case reflect.Bool:
		v.SetBool(!v.Bool())
	}
}

// Whatever a job holds: defaults are set once, validation neither panics nor changes the job, and
// each problem names its field and what to write instead. Jobs without a problem survive encoding.
func TestValidateAnyJob(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	valid, bad := 0, 0
	for range 20_000 {
		j := validJob()
		for range r.IntN(4) {
			damage(r, reflect.ValueOf(j).Elem())
		}
		SetDefaults(j)
		before := mustEncode(t, j)
		SetDefaults(j)
		problems := Validate(j)
		if after := mustEncode(t, j); after != before {
			t.Fatalf("defaults twice, or the validation, changed\n%s\nto\n%s", before, after)
		}
		for _, p := range problems {
			if p.Path == "" || p.Text == "" || p.Hint == "" {
				t.Fatalf("%s: problem %+v", before, p)
			}
		}
		if len(problems) > 0 {
			bad++
			continue
		}
		valid++
		back, err := Decode([]byte(before))
		if err != nil || mustEncode(t, back) != before {
			t.Fatalf("%s: decoded to %+v, %v", before, back, err)
		}
	}
	if valid < 1000 || bad < 1000 {
		t.Errorf("%d valid jobs and %d with problems: too few of one kind", valid, bad)
	}
}

func mustEncode(t *testing.T, j *Job) string {
	t.Helper()
	b, err := Encode(j)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A job that its author checked is not refused for its size once its files are uploaded.
func TestSizeOfAJob(t *testing.T) {
	j := validJob()
	j.Image = &Image{Kind: ImageOCIArchive, Source: "i.tar"}
	j.Stages[0].Files = []File{{Name: "a", Source: "a"}, {Name: "b", Source: "b"}}
	fill := func(n int) { j.Meta = map[string]string{"text": strings.Repeat("x", n)} }
	fill(0)
	n := MaxBytes - len(mustEncode(t, j)) - 3*uploadedBytes
	if fill(n + 1); CheckSize(j) == nil {
		t.Error("a byte too much is accepted")
	}
	if fill(n); CheckSize(j) != nil {
		t.Error(CheckSize(j))
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	j.Image.Digest, j.Image.Size = digest, MaxUploadBytes
	for i := range j.Stages[0].Files {
		j.Stages[0].Files[i].Digest, j.Stages[0].Files[i].Size = digest, MaxUploadBytes
	}
	if got := len(mustEncode(t, j)); got != MaxBytes || CheckSize(j) != nil {
		t.Errorf("uploaded, it has %d bytes, %v", got, CheckSize(j))
	}
}
