package node

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/mapreduce/harness"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
)

// taskLayout is where a task finds its files, and what its container and harness are told about
// that. It is an immutable value that reads nothing: its results depend only on its fields and the
// spec, because the engine compares the specification of a container when it is created again.
type taskLayout struct {
	id        store.ID
	dir       folder
	cfg       *Config
	harness   string // the program that the attempt's container was created with
	emptyRoot string // the root of containers without an image
	secrets   *attemptSecrets
}

// taskPaths are paths inside the task's folder as the task sees them.
type taskPaths struct{ task, tmp, harness string }

func (p taskPaths) metaPath(part ...string) string {
	return filepath.Join(append([]string{p.task, nameMeta}, part...)...)
}

// Folders in the container.
const (
	taskMount    = "/task"
	harnessMount = "/.drover" // of the harness
)

// paths returns the folders and the harness as the task sees them.
func (l *taskLayout) paths() taskPaths {
	if l.cfg.usesHostPaths() {
		return taskPaths{task: l.cfg.workDir(l.dir), tmp: l.dir.join(nameTmp), harness: l.harness}
	}
	return taskPaths{task: l.cfg.workDir(l.dir), tmp: "/tmp", harness: filepath.Join(harnessMount, filepath.Base(l.harness))}
}

// workDir returns the task's working folder as the task sees it.
func (c *Config) workDir(dir folder) string {
	if c.usesHostPaths() {
		return dir.task()
	}
	return taskMount
}

// containerSpec returns what to run. The driver compares it on a repeated
// Create, so it must be equal each time.
func (l *taskLayout) containerSpec(spec *droverv1.TaskSpec, reuse string) (runtime.Spec, error) {
	uid, err := l.cfg.taskUID(spec)
	if err != nil {
		return runtime.Spec{}, err
	}
	p := l.paths()
	s := runtime.Spec{
		ID: l.id.String(), Args: spec.GetCommand(), Env: l.environment(spec, p), Dir: p.task, UID: uid, GID: uid,
		Hostname: "task-" + strconv.Itoa(int(l.id.Key().GetTask())),
		Labels:   map[string]string{"drover.job": spec.GetJobName(), "drover.stage": spec.GetStageName(), "drover.tenant": spec.GetTenant()},
		Log:      runtime.Log{Dir: l.dir.logs(), MaxBytes: l.cfg.maxLogBytes, MaxFiles: l.cfg.maxLogFiles, BytesPerS: l.cfg.limitsOf(spec).io},
	}
	switch img := spec.GetImage(); jobspec.ImageKind(img.GetKind()) {
	case "":
		if !l.cfg.usesHostPaths() {
			s.Rootfs = l.emptyRoot // the harness's built-in programs need no root file system
		}
	case jobspec.ImageOCIArchive:
		s.Image = img.GetDigest()
	case jobspec.ImageRegistry:
		s.Image = img.GetSource()
	case jobspec.ImageRootfs:
		s.Rootfs = img.GetSource()
	default:
		return runtime.Spec{}, fault.New(fault.Unsupported, "image kind %q is not supported by this node", img.GetKind())
	}
	if e := l.cfg.Enforcer; e != nil {
		s.Cgroup = e.ContainerCgroup(l.id.String())
	}
	if spec.GetKind() != kindGroup {
		s.Args = append(append([]string{p.harness}, l.cfg.HarnessArgs...), p.metaPath(nameSpec))
	}
	if len(s.Args) == 0 {
		return runtime.Spec{}, fault.New(fault.Invalid, "stage %q has no command", spec.GetStageName())
	}
	if !l.cfg.usesHostPaths() {
		s.Mounts = []runtime.Mount{{Source: l.dir.task(), Target: p.task}, {Source: l.dir.join(nameTmp), Target: p.tmp}}
		if len(spec.GetSecrets()) > 0 {
			s.Args = append(append([]string{p.harness}, l.cfg.HarnessArgs...), append([]string{harness.WithSecrets, secretMount + "/" + secretEnvName}, s.Args...)...)
			s.Mounts = append(s.Mounts, runtime.Mount{Source: l.secrets.dir, Target: secretMount, ReadOnly: true})
		}
		if spec.GetKind() != kindGroup || len(spec.GetSecrets()) > 0 {
			s.Mounts = append(s.Mounts, runtime.Mount{Source: filepath.Dir(l.harness), Target: filepath.Dir(p.harness), ReadOnly: true})
		}
	}
	s.Reuse = reuse
	return s, nil
}

// environment returns the task's environment, sorted. The job's variables override Drover's, and
// secrets that are environment variables override both: see attemptSecrets.load.
func (l *taskLayout) environment(spec *droverv1.TaskSpec, p taskPaths) []string {
	k := l.id.Key()
	all := map[string]string{
		"HOME": p.task, "TMPDIR": p.tmp,
		"DROVER_JOB": spec.GetJobName(), "DROVER_JOB_ID": strconv.FormatUint(k.GetJob(), 10),
		"DROVER_STAGE": spec.GetStageName(), "DROVER_TASK": strconv.Itoa(int(k.GetTask())),
		"DROVER_TASKS": strconv.Itoa(int(spec.GetStageTasks())), "DROVER_ATTEMPT": strconv.Itoa(int(k.GetAttempt())),
		"DROVER_RUN": strconv.Itoa(int(k.GetRun())), "DROVER_TENANT": spec.GetTenant(),
	}
	if l.cfg.usesHostPaths() {
		all["PATH"] = os.Getenv("PATH")
	}
	maps.Copy(all, spec.GetEnv())
	maps.Copy(all, l.secrets.values)
	env := make([]string, 0, len(all))
	for name, v := range all {
		env = append(env, name+"="+v)
	}
	slices.Sort(env)
	return env
}

// writeSpec writes the harness's input. No process of the tenant runs yet.
func (l *taskLayout) writeSpec(spec *droverv1.TaskSpec, uid uint32) error {
	s, err := l.harnessSpec(spec)
	if err != nil {
		return err
	}
	path := l.dir.metaPath(nameSpec)
	if err := mapreduce.WriteSpec(path, s); err != nil {
		if errors.Is(err, mapreduce.ErrSpec) {
			return fault.New(fault.Invalid, "%w", err)
		}
		return err
	}
	return chown(path, uid)
}

// harnessSpec translates the coordinator's spec; paths are as the task sees
// them.
func (l *taskLayout) harnessSpec(spec *droverv1.TaskSpec) (*mapreduce.TaskSpec, error) {
	k, p := l.id.Key(), l.paths()
	s := &mapreduce.TaskSpec{
		Version: mapreduce.SpecVersion,
		Identity: mapreduce.TaskIdentity{
			Job: strconv.FormatUint(k.GetJob(), 10), JobName: spec.GetJobName(), Stage: spec.GetStageName(),
			Task: fmt.Sprintf("%d.%d.%d", k.GetJob(), k.GetStage(), k.GetTask()), Attempt: l.id.String(),
			Run: int(k.GetRun()), Index: int(k.GetTask()), MapTasks: int(spec.GetMapTasks()),
		},
		Program: newProgram(spec.GetCommand(), spec.GetBuiltin()),
		WorkDir: p.task, TempDir: p.metaPath(nameSpill), Result: p.metaPath(nameResult), Progress: p.metaPath(nameProgress),
		MaxLine:    min(mapreduce.MaxMaxLine, max(mapreduce.DefaultMaxLine, spec.GetDemand().GetMemory()/lineMemoryDivisor)),
		SortMemory: min(maxSortMemory, max(mapreduce.MinSortMemory, spec.GetDemand().GetMemory()/sortMemoryDivisor)),
	}
	switch spec.GetKind() {
	case kindMap:
		return s, l.fillMapSpec(s, spec, p)
	case kindReduce:
		s.Kind, s.Reduces, s.Keys = mapreduce.KindReduce, int(spec.GetPartitions()), keysOf(spec)
		s.Shuffle = &mapreduce.ReduceInput{Dir: p.metaPath(nameIn), Journal: p.metaPath(nameIn, nameSegments), Maps: int(spec.GetMapTasks())}
		s.Output = &mapreduce.OutputFile{Path: p.metaPath(nameOut, namePart), Codec: mapreduce.CodecNone}
		return s, nil
	default:
		return nil, fault.New(fault.Unsupported, "task kind %q is not supported by this node: upgrade it", spec.GetKind())
	}
}

// keysOf returns the keys of a map or reduce task, the zero value if they are the default.
func keysOf(spec *droverv1.TaskSpec) mapreduce.Keys {
	k := spec.GetKeys()
	return mapreduce.Keys{Fields: int(k.GetFields()), PartitionFields: int(k.GetPartitionFields()), PartitionKeys: k.GetPartitionKeys(), Order: k.GetOrder()}
}

func (l *taskLayout) fillMapSpec(s *mapreduce.TaskSpec, spec *droverv1.TaskSpec, p taskPaths) error {
	pieces, err := piecesOf(spec)
	if err != nil {
		return err
	}
	s.Kind, s.Reduces = mapreduce.KindMap, int(spec.GetPartitions())
	s.Input = &mapreduce.MapInput{File: p.metaPath(nameIn, nameSplit), Pieces: pieces}
	if s.Reduces == 0 {
		s.Output = &mapreduce.OutputFile{Path: p.metaPath(nameOut, namePart), Codec: mapreduce.CodecNone}
		return nil
	}
	s.Keys = keysOf(spec)
	s.MapOutput = &mapreduce.MapOutputPaths{Data: p.metaPath(nameOut, nameData), Index: p.metaPath(nameOut, nameIndex), Codec: l.cfg.mapOutputCodec(spec)}
	if len(spec.GetCombineCommand()) > 0 || len(spec.GetCombineBuiltin()) > 0 {
		c := newProgram(spec.GetCombineCommand(), spec.GetCombineBuiltin())
		s.Combiner = &c
	}
	return nil
}
