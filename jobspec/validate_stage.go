package jobspec

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// builtins lists the built-in programs by stage kind.
var builtins = map[StageKind][]string{
	KindMap:    {"identity", "wordcount", "grep"},
	KindReduce: {"identity", "wordcount", "sum", "count", "sort"},
}

// combiners lists the built-in reducers that may run over a part of the values of a
// key.
var combiners = []string{"wordcount", "sum"}

func (v *validator) checkKind(at string, s *Stage, count map[StageKind]int) {
	kind := []string{at + ".kind"}
	switch s.Kind {
	case KindMap:
		if v.job.Input == nil {
			v.addRelation([]string{"input"}, at+".kind", `add input { path = "hdfs:///…" } to the job`, "a map stage needs an input")
		}
		if s.Tasks != 0 {
			v.addRelation(kind, at+".tasks", "remove it: each split gets one task", "a map stage's number of tasks comes from its input")
		}
	case KindReduce, KindGroup:
		most := MaxTasks
		if s.Kind == KindReduce {
			most = MaxReduceTasks
		}
		if s.Tasks < 1 || s.Tasks > most {
			v.addRelation(kind, at+".tasks", fmt.Sprintf("give 1 to %d", most), "%d tasks", s.Tasks)
		}
	default:
		v.addProblem(at+".kind", suggestOneOf(string(s.Kind), "map", "reduce", "group"), "kind %q is not known", s.Kind)
		return
	}
	if s.Kind != KindGroup && count[s.Kind] > 1 {
		v.addProblem(at+".kind", "split it into two jobs", "a job has at most one %s stage", s.Kind)
	}
	if s.Kind != KindReduce && (s.Combiner || len(s.CombineCommand) > 0) {
		v.addRelation(kind, at+".combiner", "put it into the reduce stage", "a combiner belongs to the reduce stage")
	}
	v.checkKeys(at, s)
	switch s.CompressMapOutput {
	case "":
	case CompressAuto, CompressNone, CompressZstd:
		if s.Kind != KindMap {
			v.addRelation(kind, at+".compress_map_output", "put it into the map stage", "compress_map_output belongs to the map stage")
		}
	default:
		v.addProblem(at+".compress_map_output", suggestOneOf(string(s.CompressMapOutput), "auto", "none", "zstd"), "compression %q is not known", s.CompressMapOutput)
	}
	switch {
	case s.SlowStart == 0:
	case s.Kind != KindReduce:
		v.addRelation(kind, at+".slow_start", "put it into the reduce stage", "slow_start belongs to the reduce stage")
	case !(s.SlowStart > 0 && s.SlowStart <= 1):
		v.addProblem(at+".slow_start", "give a part of the map tasks, such as 0.8", "%v is not above 0 and at most 1", s.SlowStart)
	}
}

func (v *validator) checkProgram(at string, s *Stage) {
	switch {
	case len(s.Command) == 0 && len(s.Builtin) == 0:
		v.addRelation([]string{at + ".builtin"}, at+".command", `write command = ["program", "argument"]`, "the stage has no program")
	case len(s.Command) > 0 && len(s.Builtin) > 0:
		v.addProblem(at+".builtin", "keep one of the two", "both command and builtin are set")
	case len(s.Builtin) > 0:
		v.checkBuiltin(at, s)
	}
	v.checkCommand(at+".command", s.Command)
	v.checkCommand(at+".combine_command", s.CombineCommand)
}

// checkBuiltin checks what a task would find out: its job failed with the first one.
func (v *validator) checkBuiltin(at string, s *Stage) {
	name, args := s.Builtin[0], s.Builtin[1:]
	kind, combineCommand := []string{at + ".kind"}, []string{at + ".combine_command"}
	at += ".builtin"
	switch known := builtins[s.Kind]; {
	case s.Kind == KindGroup:
		v.addRelation(kind, at, `write command = ["program", "argument"]; map and reduce stages have builtins`, "a group stage has no builtin %q", name)
		return
	case len(known) == 0:
		return // the kind is not known, and that is the problem
	case !slices.Contains(known, name):
		v.addRelation(kind, at, suggestOneOf(name, known...), "a %s stage has no builtin %q", s.Kind, name)
		return
	}
	if s.Kind == KindReduce && s.Combiner && len(s.CombineCommand) == 0 && !slices.Contains(combiners, name) {
		v.addRelation(combineCommand, at, "leave combiner out, or name another program with combine_command", "builtin %q is no combiner; %s are", name, strings.Join(combiners, " and "))
	}
	if name != "grep" {
		if len(args) > 0 {
			v.addProblem(at, fmt.Sprintf("write builtin = [%q]", name), "%s takes no argument", name)
		}
		return
	}
	if len(args) != 1 {
		v.addProblem(at, `write builtin = ["grep", "expression"]`, "grep takes one regular expression")
	} else if strings.ContainsRune(args[0], 0) {
		v.addProblem(at, "remove the NUL byte", "the expression has a NUL byte")
	} else if _, err := regexp.Compile(args[0]); err != nil {
		v.addProblem(at, "write it as https://golang.org/s/re2syntax says", "grep: %v", err)
	}
}

// checkCommand checks what no program can be started with.
func (v *validator) checkCommand(at string, command []string) {
	if len(command) > 0 && command[0] == "" {
		v.addProblem(at, "name the program first", "the command's first element is empty")
	}
	for i, a := range command {
		if strings.ContainsRune(a, 0) {
			v.addProblem(at, "remove the NUL byte", "argument %d has a NUL byte", i)
		}
		if len(a) > maxExecString {
			v.addProblem(at, "write it to a file of the stage", "argument %d has %d bytes, and Linux starts no program with more than %d", i, len(a), maxExecString)
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

func (v *validator) checkFiles(at string, s *Stage) {
	names := map[string]bool{}
	for _, f := range s.Files {
		names[f.Name] = true
	}
	seen := map[string]bool{}
	for _, f := range s.Files {
		p := fmt.Sprintf("%s.file[%q]", at, f.Name)
		if !validFileName(f.Name) {
			v.addProblem(p, "give a relative path below the task's folder, such as data/words.txt", "%q is not a valid name for a file of the task", f.Name)
		}
		if seen[f.Name] {
			v.addProblem(p, "give each file a unique name", "two files are called %q", f.Name)
		}
		seen[f.Name] = true
		for dir := path.Dir(f.Name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if names[dir] && validFileName(f.Name) {
				v.addProblem(p, "rename one of the two", "%q would be a file and a folder", dir)
			}
		}
		if f.Mode&^0o777 != 0 {
			v.addProblem(p, `give permission bits such as "0755"`, "mode %#o", f.Mode)
		}
		if f.Source == "" && f.Digest == "" {
			v.addRelation([]string{p + ".source"}, p, `write source = "path"`, "the file has no source")
		}
		v.checkDigest(p, f.Digest, f.Size)
	}
	variables := map[string]bool{}
	for _, x := range s.Secrets {
		p := fmt.Sprintf("%s.secret[%q]", at, x.Env)
		if variables[x.Env] {
			v.addProblem(p, "give each secret a variable of its own", "two secrets are for the variable %q", x.Env)
		}
		variables[x.Env] = true
		if !envRE.MatchString(x.Env) {
			v.addProblem(p, "use letters, digits and _", "%q is not a valid environment variable name", x.Env)
		}
		if _, err := ParseSecretRef(x.Ref, v.job.Tenant); err != nil {
			v.addRelation([]string{p + ".ref", "tenant"}, p, `write secret = "NAME" for one that drover secret put has stored, or ref = "file:NAME" for a file in the tenant's folder of secrets on the nodes`, "%v", err)
		}
	}
}

// checkCombinerFiles checks that the files of a combiner, which are those of its reduce stage, can
// be beside those of the map stage: it runs in the folder of a map task.
func (v *validator) checkCombinerFiles() {
	mapper := slices.IndexFunc(v.job.Stages, func(s Stage) bool { return s.Kind == KindMap })
	if mapper < 0 {
		return
	}
	files, folders := map[string]*File{}, map[string]bool{}
	for i := range v.job.Stages[mapper].Files {
		f := &v.job.Stages[mapper].Files[i]
		files[f.Name] = f
		for dir := path.Dir(f.Name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			folders[dir] = true
		}
	}
	for i := range v.job.Stages {
		s := &v.job.Stages[i]
		if s.Kind != KindReduce || !s.Combiner {
			continue
		}
		for k := range s.Files {
			f := &s.Files[k]
			p := fmt.Sprintf("stage[%q].file[%q]", s.Name, f.Name)
			if other := files[f.Name]; other != nil && (other.Digest != f.Digest || other.Source != f.Source || other.Mode != f.Mode) {
				others := []string{p + ".source", p + ".mode", fmt.Sprintf("stage[%q].file[%q].source", v.job.Stages[mapper].Name, f.Name), fmt.Sprintf("stage[%q].file[%q].mode", v.job.Stages[mapper].Name, f.Name)}
				v.addRelation(others, p, "rename one of the two, or give both the same source and mode", "the combiner runs beside the map stage's files, of which another one is called %q", f.Name)
			}
			clash := ""
			if folders[f.Name] {
				clash = f.Name
			}
			for dir := path.Dir(f.Name); dir != "." && dir != "/"; dir = path.Dir(dir) {
				if files[dir] != nil {
					clash = dir
				}
			}
			if clash != "" {
				v.addProblem(p, "rename one of the two", "%q would be a file and a folder: the combiner runs beside the map stage's files", clash)
			}
		}
	}
}

// maxFileName is how many bytes each part of a file's name may have on Linux.
const maxFileName = 255

// maxFilePath bounds the whole path, in bytes.
const maxFilePath = 1024

// validFileName reports whether a file of the task may have this name: a path below
// its folder, and outside of what is Drover's there.
func validFileName(name string) bool {
	if len(name) > maxFilePath || name == "" || name == "." || name == ".." || path.IsAbs(name) || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return false
	}
	if strings.HasPrefix(name, "../") || strings.HasPrefix(name, ".drover") {
		return false
	}
	return !slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return len(part) > maxFileName })
}

// checkStageOrder checks that `after` names existing stages and that the stages
// have no cycle. A reduce stage follows the map stage without saying so.
func (v *validator) checkStageOrder() {
	const open, done = 1, 2
	mark := make([]int, len(v.job.Stages))
	mapper := slices.IndexFunc(v.job.Stages, func(s Stage) bool { return s.Kind == KindMap })
	hint := "break the cycle"
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
		if v.job.Stages[i].Kind == KindReduce && mapper >= 0 && !visit(mapper) {
			hint = "break the cycle: a reduce stage always follows the map stage"
			return false
		}
		mark[i] = done
		return true
	}
	for i, s := range v.job.Stages {
		at := fmt.Sprintf("stage[%q].after", s.Name)
		for _, a := range s.After {
			if _, ok := v.stageIndex[a]; !ok {
				v.addRelation([]string{"stage"}, at, suggestOneOf(a, slices.Sorted(maps.Keys(v.stageIndex))...), "no stage is called %q", a)
			}
		}
		if !visit(i) {
			v.addProblem(at, hint, "the stages depend on each other in a cycle")
			return
		}
	}
}
