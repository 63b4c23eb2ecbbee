package jobspec

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/names"
)

// Problem is one error in a job.
type Problem struct {
	// Path is the field: "name", "input.paths[0]", `stage["map"].resources.cpu`.
	Path string
	Text string // what is wrong
	Hint string // what to write instead
}

// String formats the problem on one line.
func (p Problem) String() string {
	s := p.Text
	if p.Path != "" {
		s = p.Path + ": " + s
	}
	if p.Hint != "" {
		s += "; " + p.Hint
	}
	return s
}

// Smallest demands that the kernel and the harness support.
const (
	minCPU    = 10       // millicores: cpu.max needs at least 1 ms in 100 ms
	MinMemory = 8 << 20  // bytes
	minIO     = 64 << 10 // bytes per second
	minDisk   = 1 << 20  // bytes
)

// builtins lists the built-in programs by stage kind.
var builtins = map[StageKind][]string{
	KindMap:    {"identity", "wordcount", "grep"},
	KindReduce: {"identity", "wordcount", "sum", "count", "sort"},
}

var (
	envRE    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	digestRE = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// SetDefaults fills in omitted fields. It is idempotent.
func SetDefaults(j *Job) {
	if j.Version == 0 {
		j.Version = Version
	}
	if j.Tenant == "" {
		j.Tenant = "default"
	}
	if j.Priority == "" {
		j.Priority = PriorityLow
	}
	if j.Deadline != nil && j.OnMiss == "" {
		j.OnMiss = OnMissContinue
	}
	for i := range j.Stages {
		s := &j.Stages[i]
		if s.Kind != KindMap && s.Tasks == 0 {
			s.Tasks = 1
		}
		if s.Attempts == 0 {
			s.Attempts = DefaultAttempts
		}
		if s.Kind == KindReduce && len(s.CombineCommand) > 0 {
			s.Combiner = true // naming its program implies it
		}
		r := &s.Resources
		r.CPU, r.Memory, r.IO = valueOr(r.CPU, defaultCPU), valueOr(r.Memory, defaultMemory), valueOr(r.IO, defaultIO)
		s.Disk = valueOr(s.Disk, defaultDisk(s))
	}
}

// defaultDisk returns the disk space of a stage that names none. Map and reduce
// tasks hold splits, spills and output. A group task gets space in proportion to
// its CPU, so that many tiny ones do not claim a node's whole disk.
func defaultDisk(s *Stage) int64 {
	if s.Kind != KindGroup || s.Resources.CPU >= defaultCPU {
		return DefaultDisk
	}
	return max(minDefaultDisk, DefaultDisk/defaultCPU*max(0, s.Resources.CPU))
}

func valueOr(v, otherwise int64) int64 {
	if v == 0 {
		return otherwise
	}
	return v
}

// Validate returns every problem of a job in the order of its fields; none means
// that the job can be submitted. It does not look at files, the clock or the
// cluster.
func Validate(j *Job) []Problem {
	v := &validator{job: j, stageIndex: map[string]int{}}
	v.checkJobFields()
	v.checkStages()
	v.checkStageOrder()
	return v.problems
}

type validator struct {
	job        *Job
	stageIndex map[string]int // stage name -> index
	problems   []Problem
}

func (v *validator) addProblem(path, hint, format string, args ...any) {
	v.problems = append(v.problems, Problem{Path: path, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (v *validator) checkJobFields() {
	j := v.job
	if j.Version < 1 || j.Version > Version {
		v.addProblem("version", fmt.Sprintf("this program knows version %d", Version), "schema version %d is not known", j.Version)
	}
	v.checkName("name", j.Name)
	v.checkName("tenant", j.Tenant)
	if j.Project != "" {
		v.checkName("project", j.Project)
	}
	if j.Priority != PriorityLow && j.Priority != PriorityHigh {
		v.addProblem("priority", suggestOneOf(string(j.Priority), "low", "high"), "priority %q is not known", j.Priority)
	}
	switch j.OnMiss {
	case "":
	case OnMissContinue, OnMissLower, OnMissStop:
		if j.Deadline == nil {
			v.addProblem("on_miss", "set deadline, or leave on_miss out", "on_miss without a deadline")
		}
	default:
		v.addProblem("on_miss", suggestOneOf(string(j.OnMiss), "continue", "lower", "stop"), "on_miss %q is not known", j.OnMiss)
	}
	v.checkDuration("runtime_bound", j.RuntimeBound)
	if j.GatherLogs != "" {
		v.checkURI("gather_logs", j.GatherLogs, false)
	}
	if j.KeepFailed < 0 || j.KeepFailed > 100 {
		v.addProblem("keep_failed", "give 0 to 100", "%d attempts to keep", j.KeepFailed)
	}
	v.checkEnv("env", j.Env)
	v.checkImage()
	v.checkInput()
	if j.Output != nil {
		v.checkURI("output.path", j.Output.Path, false)
		if j.Output.Replication < 0 || j.Output.Replication > 100 {
			v.addProblem("output.replication", "give 0 (the file system's default) to 100", "replication %d", j.Output.Replication)
		}
	}
}

// checkDuration refuses a duration that is negative, or so short that it would count as none: nodes and coordinators
// count milliseconds.
func (v *validator) checkDuration(field string, d Duration) {
	switch {
	case d < 0:
		v.addProblem(field, "give a positive duration such as 30m, or leave it out", "negative duration")
	case d > 0 && d < Duration(time.Millisecond):
		v.addProblem(field, "give a positive duration such as 30m, or leave it out", "%s is less than a millisecond", time.Duration(d))
	}
}

func (v *validator) checkImage() {
	im := v.job.Image
	if im == nil {
		return
	}
	switch im.Kind {
	case ImageOCIArchive, ImageRegistry, ImageRootfs:
	default:
		v.addProblem("image", suggestOneOf(string(im.Kind), "oci-archive", "registry", "rootfs"), "image kind %q is not known", im.Kind)
	}
	if im.Source == "" {
		v.addProblem("image", `write for example "oci-archive:python.tar"`, "the image has no source")
	}
	if im.Kind == ImageRootfs && im.Source != "" && !path.IsAbs(im.Source) {
		v.addProblem("image", "give the folder's absolute path on the nodes", "rootfs %q is not absolute", im.Source)
	}
	v.checkDigest("image", im.Digest, im.Size)
}

func (v *validator) checkInput() {
	in := v.job.Input
	if in == nil {
		return
	}
	if len(in.Paths) == 0 {
		v.addProblem("input.paths", `write path = "hdfs:///folder/*.txt"`, "the input names no path")
	}
	for i, p := range in.Paths {
		v.checkURI(fmt.Sprintf("input.paths[%d]", i), p, true)
	}
	if in.CombineBytes < 0 {
		v.addProblem("input.combine", `give a size such as "128MiB"`, "negative size")
	}
	if !slices.ContainsFunc(v.job.Stages, func(s Stage) bool { return s.Kind == KindMap }) {
		v.addProblem("input", `add a stage with kind = "map", or remove the input`, "no stage reads the input")
	}
}

func (v *validator) checkStages() {
	if len(v.job.Stages) == 0 {
		v.addProblem("stage", `add stage "main" { command = [...] }`, "the job has no stage")
	}
	if len(v.job.Stages) > MaxStages {
		v.addProblem("stage", fmt.Sprintf("split it into jobs of at most %d stages", MaxStages), "%d stages", len(v.job.Stages))
	}
	count := map[StageKind]int{}
	for i := range v.job.Stages {
		s := &v.job.Stages[i]
		at := fmt.Sprintf("stage[%q]", s.Name)
		v.checkName(at+".name", s.Name)
		if _, twice := v.stageIndex[s.Name]; twice {
			v.addProblem(at+".name", "give each stage a unique name", "two stages are called %q", s.Name)
		}
		v.stageIndex[s.Name] = i
		count[s.Kind]++
		v.checkKind(at, s, count)
		v.checkProgram(at, s)
		v.checkResources(at, s)
		v.checkEnv(at+".env", s.Env)
		v.checkFiles(at, s)
	}
	if count[KindReduce] > 0 && count[KindMap] == 0 {
		v.addProblem("stage", `add a stage with kind = "map"`, "a reduce stage needs a map stage")
	}
	if o := v.job.Output; o != nil && count[KindMap] == 0 {
		v.addProblem("output", "only map and reduce stages write the output; a group writes its own files", "no stage writes the output")
	}
}

func (v *validator) checkKind(at string, s *Stage, count map[StageKind]int) {
	switch s.Kind {
	case KindMap:
		if v.job.Input == nil {
			v.addProblem(at+".kind", `add input { path = "hdfs:///…" } to the job`, "a map stage needs an input")
		}
		if s.Tasks != 0 {
			v.addProblem(at+".tasks", "remove it: each split gets one task", "a map stage's number of tasks comes from its input")
		}
	case KindReduce, KindGroup:
		most := MaxTasks
		if s.Kind == KindReduce {
			most = MaxReduceTasks
		}
		if s.Tasks < 1 || s.Tasks > most {
			v.addProblem(at+".tasks", fmt.Sprintf("give 1 to %d", most), "%d tasks", s.Tasks)
		}
	default:
		v.addProblem(at+".kind", suggestOneOf(string(s.Kind), "map", "reduce", "group"), "kind %q is not known", s.Kind)
		return
	}
	if s.Kind != KindGroup && count[s.Kind] > 1 {
		v.addProblem(at+".kind", "split it into two jobs", "a job has at most one %s stage", s.Kind)
	}
	if s.Kind != KindReduce && (s.Combiner || len(s.CombineCommand) > 0) {
		v.addProblem(at+".combiner", "put it into the reduce stage", "a combiner belongs to the reduce stage")
	}
	switch {
	case s.SlowStart == 0:
	case s.Kind != KindReduce:
		v.addProblem(at+".slow_start", "put it into the reduce stage", "slow_start belongs to the reduce stage")
	case !(s.SlowStart > 0 && s.SlowStart <= 1):
		v.addProblem(at+".slow_start", "give a part of the map tasks, such as 0.8", "%v is not above 0 and at most 1", s.SlowStart)
	}
}

func (v *validator) checkProgram(at string, s *Stage) {
	switch {
	case len(s.Command) == 0 && len(s.Builtin) == 0:
		v.addProblem(at+".command", `write command = ["program", "argument"]`, "the stage has no program")
	case len(s.Command) > 0 && len(s.Builtin) > 0:
		v.addProblem(at+".builtin", "keep one of the two", "both command and builtin are set")
	case len(s.Builtin) > 0:
		known := builtins[s.Kind]
		if !slices.Contains(known, s.Builtin[0]) {
			v.addProblem(at+".builtin", suggestOneOf(s.Builtin[0], known...), "a %s stage has no builtin %q", s.Kind, s.Builtin[0])
		}
		if s.Builtin[0] == "grep" && len(s.Builtin) != 2 {
			v.addProblem(at+".builtin", `write builtin = ["grep", "expression"]`, "grep takes one regular expression")
		}
	case s.Command[0] == "":
		v.addProblem(at+".command", "name the program first", "the command's first element is empty")
	}
	for i, a := range append(slices.Clone(s.Command), s.CombineCommand...) {
		if strings.ContainsRune(a, 0) {
			v.addProblem(at+".command", "remove the NUL byte", "argument %d has a NUL byte", i)
		}
	}
}

func (v *validator) checkResources(at string, s *Stage) {
	requireMin := func(field string, have, minimum int64, show string) {
		if have < minimum {
			v.addProblem(at+"."+field, "give at least "+show, "%s is too small", field)
		} else if have > 1<<50 {
			v.addProblem(at+"."+field, "no machine has so much", "%s is too large", field)
		}
	}
	requireMin("resources.cpu", s.Resources.CPU, minCPU, "10m")
	requireMin("resources.memory", s.Resources.Memory, MinMemory, FormatSize(MinMemory))
	requireMin("resources.io", s.Resources.IO, minIO, FormatRate(minIO))
	requireMin("disk", s.Disk, minDisk, FormatSize(minDisk))
	if s.Attempts < 1 || s.Attempts > 100 {
		v.addProblem(at+".attempts", "give 1 to 100", "%d attempts", s.Attempts)
	}
	v.checkDuration(at+".time_limit", s.TimeLimit)
	if s.MaxParallel < 0 {
		v.addProblem(at+".max_parallel", "give 0 (no limit) or more", "negative number")
	}
}

func (v *validator) checkEnv(at string, env map[string]string) {
	for _, k := range sortedKeys(env) {
		if !envRE.MatchString(k) {
			v.addProblem(at, "use letters, digits and _", "%q is not a valid environment variable name", k)
		}
		if strings.ContainsRune(env[k], 0) {
			v.addProblem(at, "remove the NUL byte", "the value of %q has a NUL byte", k)
		}
	}
}

func (v *validator) checkFiles(at string, s *Stage) {
	seen := map[string]bool{}
	for _, f := range s.Files {
		p := fmt.Sprintf("%s.file[%q]", at, f.Name)
		if f.Name == "" || path.IsAbs(f.Name) || path.Clean(f.Name) != f.Name || f.Name == ".." || strings.HasPrefix(f.Name, "../") || strings.HasPrefix(f.Name, ".drover") || strings.ContainsRune(f.Name, 0) {
			v.addProblem(p, "give a relative path below the task's folder, such as data/words.txt", "%q is not a valid name for a file of the task", f.Name)
		}
		if seen[f.Name] {
			v.addProblem(p, "give each file a unique name", "two files are called %q", f.Name)
		}
		seen[f.Name] = true
		if f.Mode&^0o777 != 0 {
			v.addProblem(p, `give permission bits such as "0755"`, "mode %#o", f.Mode)
		}
		if f.Source == "" && f.Digest == "" {
			v.addProblem(p, `write source = "path"`, "the file has no source")
		}
		v.checkDigest(p, f.Digest, f.Size)
	}
	for _, x := range s.Secrets {
		p := fmt.Sprintf("%s.secret[%q]", at, x.Env)
		if !envRE.MatchString(x.Env) {
			v.addProblem(p, "use letters, digits and _", "%q is not a valid environment variable name", x.Env)
		}
		if _, err := ParseSecretRef(x.Ref, v.job.Tenant); err != nil {
			v.addProblem(p, `write secret = "NAME" for one that drover secret put has stored, or ref = "file:NAME" for a file in the tenant's folder of secrets on the nodes`, "%v", err)
		}
	}
}

// checkStageOrder checks that `after` names existing stages and that the stages
// have no cycle.
func (v *validator) checkStageOrder() {
	const open, done = 1, 2
	mark := make([]int, len(v.job.Stages))
	var visit func(i int) bool
	visit = func(i int) bool {
		if mark[i] != 0 {
			return mark[i] == done
		}
		mark[i] = open
		for _, a := range v.job.Stages[i].After {
			if k, ok := v.stageIndex[a]; ok && !visit(k) {
				return false
			}
		}
		mark[i] = done
		return true
	}
	for i, s := range v.job.Stages {
		at := fmt.Sprintf("stage[%q].after", s.Name)
		for _, a := range s.After {
			if _, ok := v.stageIndex[a]; !ok {
				v.addProblem(at, suggestOneOf(a, sortedKeys(v.stageIndex)...), "no stage is called %q", a)
			}
		}
		if !visit(i) {
			v.addProblem(at, "break the cycle", "the stages depend on each other in a cycle")
			return
		}
	}
}

func (v *validator) checkName(at, name string) {
	if !names.Valid(name) {
		v.addProblem(at, "use 1 to 128 letters, digits, '.', '_' or '-', a letter or digit first", "%q is not a valid name", name)
	}
}

func (v *validator) checkURI(at, s string, glob bool) {
	if strings.ContainsRune(s, 0) {
		v.addProblem(at, "remove the NUL byte", "the path has a NUL byte")
		return
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || (scheme != "hdfs" && scheme != "file") {
		v.addProblem(at, "write hdfs:///path, hdfs://host:port/path or file:///path", "%q has no known scheme", s)
		return
	}
	slash := strings.IndexByte(rest, '/')
	if slash < 0 || (scheme == "file" && slash > 0) {
		v.addProblem(at, "give an absolute path: "+scheme+":///path", "%q has no absolute path", s)
		return
	}
	if _, err := url.Parse(scheme + "://" + rest[:slash] + "/"); err != nil {
		v.addProblem(at, "write hdfs://host:port/path", "%q has no valid host", s)
	}
	if !glob && strings.ContainsAny(rest, "*?[{") {
		v.addProblem(at, "name one path", "%q has a pattern; only inputs may", s)
	}
	if slices.Contains(strings.Split(rest[slash:], "/"), "..") {
		v.addProblem(at, "write the path without ..", "%q contains ..", s)
	}
}

func (v *validator) checkDigest(at, d string, size int64) {
	if d != "" && !digestRE.MatchString(d) {
		v.addProblem(at, "want sha256: and 64 hex digits", "%q is not a digest", d)
	}
	if size < 0 || size > MaxUploadBytes {
		v.addProblem(at, "put large data into HDFS and name it as input", "%s is over the limit of %s for one uploaded file", FormatSize(size), FormatSize(MaxUploadBytes))
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// suggestOneOf returns a hint for an unknown word: the nearest known word, or all.
func suggestOneOf(have string, known ...string) string {
	if s := Suggest(have, known); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return "choose one of " + strings.Join(known, ", ")
}

// Suggest returns the known word nearest to a mistyped one, or "" if none is near:
// at most a third of its letters, and always one, may differ. Ties go to the first.
func Suggest(have string, known []string) string {
	best, dist := "", 1+max(1, len(have)/3)
	for _, k := range known {
		if d := editDistance(strings.ToLower(have), strings.ToLower(k)); d < dist {
			best, dist = k, d
		}
	}
	return best
}

// editDistance returns the number of insertions, deletions, substitutions and
// swaps of adjacent bytes between two words (optimal string alignment), in
// O(len(a) len(b)).
func editDistance(a, b string) int {
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for k := range d[0] {
		d[0][k] = k
	}
	for i := 1; i <= len(a); i++ {
		for k := 1; k <= len(b); k++ {
			cost := 1
			if a[i-1] == b[k-1] {
				cost = 0
			}
			d[i][k] = min(d[i-1][k-1]+cost, d[i-1][k]+1, d[i][k-1]+1)
			if i > 1 && k > 1 && a[i-1] == b[k-2] && a[i-2] == b[k-1] {
				d[i][k] = min(d[i][k], d[i-2][k-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}
