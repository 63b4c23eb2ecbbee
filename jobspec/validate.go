package jobspec

import (
	"fmt"
	"maps"
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
	return ValidateRead(j, func(string) bool { return true })
}

// ValidateRead is Validate for a job of which some fields could not be read. read reports whether
// the field of a path was read; the path of the list of stages is "stage". It leaves out problems
// in fields that were not read, and problems that depend on such fields, since they may not exist.
func ValidateRead(j *Job, read func(path string) bool) []Problem {
	v := &validator{job: j, read: read, stageIndex: map[string]int{}, kinds: []string{"stage"}, unclear: map[string]bool{}}
	for i := range j.Stages {
		s := &j.Stages[i]
		kind := fmt.Sprintf("stage[%q].kind", s.Name)
		v.kinds = append(v.kinds, kind)
		v.unclear[kind] = v.unclear[kind] || s.Kind != KindMap && s.Kind != KindReduce && s.Kind != KindGroup
	}
	v.checkJobFields()
	v.checkStages()
	v.checkStageOrder()
	return v.problems
}

type validator struct {
	job        *Job
	read       func(path string) bool
	stageIndex map[string]int  // stage name -> index
	kinds      []string        // paths of the kinds of all stages, and of the list of stages
	unclear    map[string]bool // paths of the kinds that are not known
	problems   []Problem
}

// addProblem adds a problem of one field.
func (v *validator) addProblem(path, hint, format string, args ...any) {
	v.addRelation(nil, path, hint, format, args...)
}

// addRelation adds a problem of a field that others cause, too.
func (v *validator) addRelation(others []string, path, hint, format string, args ...any) {
	if !v.read(path) || slices.ContainsFunc(others, func(o string) bool { return v.unclear[o] || !v.read(o) }) {
		return
	}
	v.problems = append(v.problems, Problem{Path: path, Text: fmt.Sprintf(format, args...), Hint: hint})
}

func (v *validator) checkJobFields() {
	j := v.job
	if j.Version < 1 || j.Version > Version {
		v.addProblem("version", fmt.Sprintf("this program knows version %d", Version), "schema version %d is not known", j.Version)
	}
	v.checkName("name", j.Name)
	if j.Name != "" && strings.Trim(j.Name, "0123456789") == "" {
		v.addProblem("name", "add a letter", "%q is digits alone, like the number of a job", j.Name)
	}
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
			v.addRelation([]string{"deadline"}, "on_miss", "set deadline, or leave on_miss out", "on_miss without a deadline")
		}
	default:
		v.addProblem("on_miss", suggestOneOf(string(j.OnMiss), "continue", "lower", "stop"), "on_miss %q is not known", j.OnMiss)
	}
	if d := j.Deadline; d != nil && (d.UTC().Year() < 1 || d.UTC().Year() > 9999) {
		v.addProblem("deadline", "give a time from the year 1 to 9999", "%d is no year of a deadline in UTC", d.UTC().Year())
	}
	v.checkDuration("runtime_bound", j.RuntimeBound)
	if j.GatherLogs != "" {
		v.checkURI("gather_logs", j.GatherLogs, false)
		v.checkNotTemporary("gather_logs", j.GatherLogs)
	}
	if j.KeepFailed < 0 || j.KeepFailed > 100 {
		v.addProblem("keep_failed", "give 0 to 100", "%d attempts to keep", j.KeepFailed)
	}
	v.checkEnv("env", j.Env)
	v.checkImage()
	v.checkInput()
	if j.Output != nil {
		v.checkURI("output.path", j.Output.Path, false)
		v.checkNotTemporary("output.path", j.Output.Path)
		if j.Output.Replication < 0 || j.Output.Replication > 100 {
			v.addProblem("output.replication", "give 0 (the file system's default) to 100", "replication %d", j.Output.Replication)
		}
	}
}

// TemporaryPrefix is how the name of a folder of unfinished output begins.
const TemporaryPrefix = "_temporary."

// checkNotTemporary refuses a path in a folder of unfinished output: a job could make a folder
// where another one's task is to write its file.
func (v *validator) checkNotTemporary(field, path string) {
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(part, TemporaryPrefix) {
			v.addProblem(field, "give a path outside of it", "%q is a folder of unfinished output", part)
		}
	}
}

// maxDuration is the longest duration of a job, ten years: sums of some durations and a time can
// still be counted.
const maxDuration = 10 * 365 * 24 * time.Hour

// checkDuration refuses a duration that is negative, beyond maxDuration, or so short that it would
// count as none: nodes and coordinators count milliseconds.
func (v *validator) checkDuration(field string, d Duration) {
	switch {
	case d < 0:
		v.addProblem(field, "give a positive duration such as 30m, or leave it out", "negative duration")
	case d > 0 && d < Duration(time.Millisecond):
		v.addProblem(field, "give a positive duration such as 30m, or leave it out", "%s is less than a millisecond", time.Duration(d))
	case d > Duration(maxDuration):
		v.addProblem(field, "give at most 87600h, or leave it out", "%s is more than ten years", time.Duration(d))
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
	if im.Kind == ImageRootfs && slices.Contains(strings.Split(im.Source, "/"), "..") { // it would leave the folder that the operator allows
		v.addProblem("image", "write the path without ..", "rootfs %q contains ..", im.Source)
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
		v.addRelation(v.kinds, "input", `add a stage with kind = "map", or remove the input`, "no stage reads the input")
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
	v.checkWordCountKeys()
	v.checkCombinerFiles()
	if count[KindReduce] > 0 && count[KindMap] == 0 {
		v.addRelation(v.kinds, "stage", `add a stage with kind = "map"`, "a reduce stage needs a map stage")
	}
	if o := v.job.Output; o != nil && count[KindMap] == 0 {
		v.addRelation(v.kinds, "output", "only map and reduce stages write the output; a group writes its own files", "no stage writes the output")
	}
}

// maxExecString is how many bytes one argument, or one variable with its value, may have where a
// program is started (MAX_ARG_STRLEN, without the zero at the end). All of them together may have
// megabytes, more than a job.
const maxExecString = 128<<10 - 1

func (v *validator) checkEnv(at string, env map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if !envRE.MatchString(k) {
			v.addProblem(at, "use letters, digits and _", "%q is not a valid environment variable name", k)
		}
		if strings.ContainsRune(env[k], 0) {
			v.addProblem(at, "remove the NUL byte", "the value of %q has a NUL byte", k)
		}
		if n := len(k) + len("=") + len(env[k]); n > maxExecString {
			v.addProblem(at, "write it to a file of the stage", "%q and its value have %d bytes, and Linux starts no program with more than %d", k, n, maxExecString)
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
